"""RECom's synthesised models E and F (Pan et al. 2023, table 1; sizes from its repository): columns by the thousand.

The feature description defines the columns; most are numbers in buckets, as in RECom's production models. The graph
takes their output, and 32 numbers through a layer of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from veltair.zoo.recommendation.description_text import DescriptionEntries, DescriptionEntry
from veltair.zoo.recommendation.recommender import RecommenderGraph, RecommenderSpec
from veltair.zoo.recommendation.table_sizes import EmbeddingTable

DENSE = BOTTOM = 32
DIM, LARGE_DIM, LARGE_ROWS = 8, 32, 1 << 23
BOUNDARIES = tuple(5.0 * i for i in range(100))
RMS = 0.3  # of the columns' output: rows are uniform in ±0.5


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """Columns of one kind: the keys of their features and columns, and the size of each table.

    >>> KINDS[0].rows
    101
    """

    name: str
    feature: DescriptionEntry
    column: DescriptionEntry
    rows: int
    dim: int = DIM

    def step(self, table: EmbeddingTable) -> DescriptionEntry:
        return {} if "boundaries" in self.column else {"hash": table.rows}


_TOKENS: DescriptionEntry = {"kind": "tokens", "separator": ";", "max_bytes": 96}  # 1 to 10 words of 8 letters
KINDS = (
    ColumnKind("bucket", {"kind": "float"}, {"boundaries": BOUNDARIES}, len(BOUNDARIES) + 1),
    ColumnKind("int", {"kind": "int"}, {}, 100),
    ColumnKind("string", {"kind": "string"}, {}, 10_000),
    ColumnKind("tokens", _TOKENS, {"combiner": "sum"}, 10_000),
    ColumnKind("large", _TOKENS, {"combiner": "sum"}, LARGE_ROWS, LARGE_DIM),
)


def _recom(name: str, counts: tuple[int, ...], top: tuple[int, ...]) -> RecommenderSpec:
    """counts: columns of each of `KINDS`."""
    columns = [(f"{kind.name}{i}", kind) for kind, count in zip(KINDS, counts, strict=True) for i in range(count)]
    width = sum(kind.dim for _, kind in columns)

    def build(g: RecommenderGraph) -> tuple[str, int]:
        """x float32 (n, columns' widths together), dense float32 (n, 32) -> probability float32 (n, 1)."""
        x, dense = g.floats("x", width), g.floats("dense", DENSE)
        bottom = g.tower(dense, "bottom", (DENSE, BOTTOM))
        both = g.node("Concat", [bottom, x], "features", axis=1)
        widths = (BOTTOM + width, *top)
        return g.score(g.tower(both, "top", widths, RMS), f"top.{len(top)}", top[-1]), 1

    def describe(tables: Mapping[str, EmbeddingTable]) -> DescriptionEntries:
        features: list[DescriptionEntry] = [{"name": column, **kind.feature} for column, kind in columns]
        steps: list[DescriptionEntry] = [
            {"feature": column, "table": column, **kind.column, **kind.step(tables[column])} for column, kind in columns
        ]
        return {"features": features, "columns": steps, "inputs": [{"name": "x", "columns": [c for c, _ in columns]}]}

    tables = tuple(EmbeddingTable(column, kind.rows, kind.dim) for column, kind in columns)
    return RecommenderSpec(name, tables, build, qos_ms=100, max_batch=2048, describe=describe)


RECOM_E = _recom("recom_e", (880, 50, 50, 15, 5), (1024, 1024, 128))
RECOM_F = _recom("recom_f", (1000, 90, 100, 7, 3), (2048, 1024, 1024, 512))

"""DeepFM (Guo et al. 2017) for Kaggle's display advertising challenge, as DeepRec's model zoo has it.

13 numbers and 26 strings, hashed to 10,000 rows of 16 each. Rows meet in a factorisation machine (the square of their
sum less the sum of their squares), in a sum of all values and in a tower; a second tower takes the three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from veltair.zoo.recommendation.description_text import DescriptionEntries, DescriptionEntry
from veltair.zoo.recommendation.recommender import RecommenderGraph, RecommenderSpec
from veltair.zoo.recommendation.table_sizes import EmbeddingTable

NUMBERS, STRINGS, ROWS, DIM = 13, 26, 10_000, 16
DEEP, FINAL = (1024, 256, 32), (128, 64)
WIDTH = NUMBERS + STRINGS * DIM
_SQUARE = 1 / 12  # mean square of a row's values, uniform in ±0.5
_DEEP_RMS = math.sqrt((NUMBERS + STRINGS * DIM * _SQUARE) / WIDTH)
_SUM = NUMBERS + STRINGS * DIM * _SQUARE
_PAIRS = STRINGS * (STRINGS - 1) / 2 * _SQUARE**2
_FINAL_RMS = math.sqrt((DEEP[-1] + _SUM + DIM * _PAIRS) / (DEEP[-1] + 1 + DIM))


def _build(g: RecommenderGraph) -> tuple[str, int]:
    """x float32 (n, 13 + 26 * 16) -> probability float32 (n, 1)."""
    x = g.floats("x", WIDTH)
    ends = [g.constant(f"rows.{key}", np.array([end], np.int64)) for key, end in (("from", NUMBERS), ("to", WIDTH))]
    flat = g.node("Slice", [x, *ends, g.axis(1)], "rows.flat")
    shape = g.constant("rows.shape", np.array([-1, STRINGS, DIM], np.int64))
    rows = g.node("Reshape", [flat, shape], "rows")
    total = g.total(rows, "fm.total")
    square = g.node("Mul", [total, total], "fm.square")
    squares = g.total(g.node("Mul", [rows, rows], "fm.rows"), "fm.squares")
    half = g.constant("fm.half", np.array(0.5, np.float32))
    pairs = g.node("Mul", [g.node("Sub", [square, squares], "fm.twice"), half], "fm")
    deep = g.tower(x, "deep", (WIDTH, *DEEP), _DEEP_RMS, normalised=True)
    parts = g.node("Concat", [deep, g.total(x, "linear", keep=True), pairs], "parts", axis=1)
    last = g.tower(parts, "final", (DEEP[-1] + 1 + DIM, *FINAL), _FINAL_RMS, normalised=True)
    return g.score(last, f"final.{len(FINAL)}", FINAL[-1]), 1


def _describe(tables: Mapping[str, EmbeddingTable]) -> DescriptionEntries:
    numbers, strings = ([f"{letter}{i}" for i in range(1, count + 1)] for letter, count in (("I", 13), ("C", 26)))
    features: list[DescriptionEntry] = [
        *({"name": name, "kind": "float"} for name in numbers),
        *({"name": name, "kind": "string", "max_bytes": 16} for name in strings),
    ]
    columns: list[DescriptionEntry] = [
        *({"feature": name} for name in numbers),
        *({"feature": name, "hash": tables[name].rows, "table": name} for name in strings),
    ]
    return {"features": features, "columns": columns, "inputs": [{"name": "x", "columns": [*numbers, *strings]}]}


DEEPFM = RecommenderSpec(
    "deepfm",
    tuple(EmbeddingTable(f"C{i}", ROWS, DIM) for i in range(1, STRINGS + 1)),
    _build,
    qos_ms=25,
    max_batch=1024,
    describe=_describe,
)

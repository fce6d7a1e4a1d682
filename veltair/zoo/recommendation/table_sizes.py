"""Embedding tables of recommendation models, as published or cut to the memory of the machine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from veltair.machine.memory import memory_bytes

MEMORY_SHARE = 4  # all tables of a model may take 1 / MEMORY_SHARE of the memory


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """A table of float32 rows, uniform in ±bound.

    >>> EmbeddingTable("users", rows=1000, dim=16).bytes
    64000
    """

    name: str
    rows: int
    dim: int
    bound: float = 0.5

    @property
    def bytes(self) -> int:
        return 4 * self.rows * self.dim


@dataclass(frozen=True, slots=True)
class TableCut:
    """Neighbouring tables, `first` … `last`, that were cut to the same number of rows.

    >>> TableCut("large0", "large4", published=1 << 23, rows=1 << 20).rows
    1048576
    """

    first: str
    last: str
    published: int
    rows: int


def fit_tables(tables: Sequence[EmbeddingTable], rows: int | None) -> tuple[EmbeddingTable, ...]:
    """Returns the tables with at most `rows` rows each.

    None: all rows where the tables fit into `1 / MEMORY_SHARE` of the memory, else the largest power of two that fits.
    """
    return _capped(tables, most_rows(tables, memory_bytes() // MEMORY_SHARE) if rows is None else rows)


def most_rows(tables: Sequence[EmbeddingTable], room_bytes: int) -> int:
    """Returns the most rows of a table so that all tables fit into `room_bytes`; 0 bytes means that there is no limit.

    It is the largest table's where all fit as they are, else a power of two.
    """
    rows = max((table.rows for table in tables), default=1)
    while room_bytes and rows > 1 and sum(table.bytes for table in _capped(tables, rows)) > room_bytes:
        rows = 1 << (rows - 1).bit_length() - 1
    return rows


def find_cuts(published: Sequence[EmbeddingTable], taken: Sequence[EmbeddingTable]) -> list[TableCut]:
    """Returns the tables that have fewer rows than published."""
    pairs = [(whole, part) for whole, part in zip(published, taken, strict=True) if part.rows < whole.rows]
    runs = (list(run) for _, run in itertools.groupby(pairs, lambda pair: (pair[0].rows, pair[1].rows)))
    return [TableCut(run[0][0].name, run[-1][0].name, run[0][0].rows, run[0][1].rows) for run in runs]


def _capped(tables: Sequence[EmbeddingTable], rows: int) -> tuple[EmbeddingTable, ...]:
    return tuple(replace(table, rows=min(table.rows, rows)) for table in tables)

"""Embedding tables of recommendation models: as published, or as many of their rows as a machine has room for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from veltair.machine.memory import memory_bytes

MEMORY_SHARE = 4  # all tables of a model may take this part of the memory


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows of float32, uniform in ±bound."""

    name: str
    rows: int
    dim: int
    bound: float = 0.5

    @property
    def bytes(self) -> int:
        return 4 * self.rows * self.dim


@dataclass(frozen=True, slots=True)
class Cut:
    """Neighbouring tables, `first` … `last`, that were made smaller in the same way."""

    first: str
    last: str
    published: int
    rows: int


def fitted(tables: Sequence[Embedding], rows: int | None) -> tuple[Embedding, ...]:
    """At most `rows` of each. None: all where they fit into `1 / MEMORY_SHARE` of the memory, else at most the largest
    power of two of each at which they do."""
    return _capped(tables, most_rows(tables, memory_bytes() // MEMORY_SHARE) if rows is None else rows)


def most_rows(tables: Sequence[Embedding], room_bytes: int) -> int:
    """Of a table, so that all fit: the largest table's where they do as they are, else a power of two. 0 bytes: no
    limit is known."""
    rows = max((table.rows for table in tables), default=1)
    while room_bytes and rows > 1 and sum(table.bytes for table in _capped(tables, rows)) > room_bytes:
        rows = 1 << (rows - 1).bit_length() - 1
    return rows


def cuts(published: Sequence[Embedding], taken: Sequence[Embedding]) -> list[Cut]:
    """Where rows are missing."""
    pairs = [(whole, part) for whole, part in zip(published, taken, strict=True) if part.rows < whole.rows]
    runs = (list(run) for _, run in itertools.groupby(pairs, lambda pair: (pair[0].rows, pair[1].rows)))
    return [Cut(run[0][0].name, run[-1][0].name, run[0][0].rows, run[0][1].rows) for run in runs]


def _capped(tables: Sequence[Embedding], rows: int) -> tuple[Embedding, ...]:
    return tuple(replace(table, rows=min(table.rows, rows)) for table in tables)

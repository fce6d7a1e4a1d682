"""What one task of the columns kernel works on: `ColumnTask`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from veltair.compiler.codegen.vectors import Expr


@dataclass(frozen=True, slots=True)
class ColumnTask:
    """A tile: `columns` columns of one code path from `first_column` on, `rows` rows of the batch from `start` on.

    The expressions are those of the generated code; the other fields are known when it is generated.

    ::

        start = T.bind(tile * 256)
        rows = T.bind(T.min(256, batch - start))
        task = ColumnTask(buffers, first, count, start, rows, batch, most_rows=256, most_columns=32, prefetches=False,
                          longest_key=20, widest=64, part_kinds=frozenset(), permutes=True)
    """

    buffers: dict[str, Any]  # operands by name: packed buffers of raw features, weights, "out"
    first_column: Expr
    columns: Expr
    start: Expr
    rows: Expr
    batch: Expr
    most_rows: int  # of a tile
    most_columns: int  # of a tile
    prefetches: bool  # whether rows of large tables are fetched before they are read
    longest_key: int  # bytes of a vocabulary's key
    widest: int  # numbers of a row of any table
    part_kinds: frozenset[str]  # of crosses: those of PART_KINDS that need code
    permutes: bool  # whether the CPU takes 16 numbers from 16 by index

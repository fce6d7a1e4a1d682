"""Rows of a batch in the lanes of vectors: 16 rows become lines, one vector for each column, and back.

Rows are transposed 16 by 16 in registers. Lanes behind the last row of the batch hold the last row again, and are not
stored.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.transpose import transpose_16x16
from veltair.compiler.codegen.vectors import LANES, Expr

Columns = Callable[[Expr], None]
Line = tuple[int, Expr]  # tile and line in a buffer (tiles, lines, 16)


def flatten_to_rows(buffer: Any, width: int) -> Any:
    """A view of a tensor's memory as rows of `width` elements."""
    return T.decl_buffer([prod(buffer.shape) // width, width], buffer.dtype, data=buffer.data)


def flatten(buffer: Any) -> Any:
    """A view of a tensor's memory in one dimension."""
    return T.decl_buffer([prod(buffer.shape)], buffer.dtype, data=buffer.data)


def load_transposed(
    source: Any, first: Expr, row: Expr, rows: Expr, lines: Any, line: Line, width: int, left: Expr | int = 0
) -> None:
    """Load `width` columns of 16 rows, from column `left` on, and store them as lines from `line` on.

    The rows are those from `row` on of the `rows` that begin at row `first` of the source.
    """
    tile, start = line

    def place(lane: Expr | int) -> Expr:
        return first + T.min(row + lane, rows - 1)

    def block(column: Expr) -> None:
        taken = [T.bind(vector_load(source, place(lane), left + column)) for lane in range(LANES)]
        for i, value in enumerate(transpose_16x16(taken)):
            vector_store(lines, value, tile, start + column + i, 0)

    def single(column: Expr) -> None:
        with T.serial(0, LANES) as lane:
            T.buffer_store(lines, source[place(lane), left + column], [tile, start + column, lane])

    _by_16(width, block, single)


def store_transposed(
    lines: Any, line: Line, target: Any, first: Expr, row: Expr, rows: Expr, width: int, left: Expr | int = 0
) -> None:
    """Load lines from `line` on and store them as 16 rows of the target: the reverse of `load_transposed`."""
    tile, start = line

    def block(column: Expr) -> None:
        values = [T.bind(vector_load(lines, tile, start + column + i, 0)) for i in range(LANES)]
        for lane, value in enumerate(transpose_16x16(values)):
            with when(row + lane < rows):
                vector_store(target, value, first + row + lane, left + column)

    def single(column: Expr) -> None:
        with T.serial(0, LANES) as lane, when(row + lane < rows):
            T.buffer_store(target, lines[tile, start + column, lane], [first + row + lane, left + column])

    _by_16(width, block, single)


def _by_16(width: int, block: Columns, single: Columns) -> None:
    """Blocks of 16 columns, the last of which may overlap the one before it; single columns where there are fewer."""
    if width < LANES:
        with T.serial(0, width) as column:
            single(column)
        return
    with T.serial(0, width // LANES) as number:
        block(T.bind(number * LANES))
    if width % LANES:
        block(T.int32(width - LANES))

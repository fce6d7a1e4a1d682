"""Packs computed operands for the microkernels of bfloat16: the left one in rows of 32 values, the right one in rows of
16 pairs.

The sources are fp32 or bfloat16. What lies behind the end of the reduction becomes zero on both sides, since memory
there may hold a NaN, which a zero on one side alone would not cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.bf16 import float32_pair_to_bf16, float32_to_bf16
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import masked_load, vector_load, vector_store
from veltair.compiler.codegen.transpose import transpose_16x16
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, broadcast_uint32, ramp

ElementIndex: TypeAlias = Callable[[Expr, Expr], tuple[Expr, ...]]  # of (row, column) of the matrix in its buffer
STEP = 2 * LANES  # values of the reduction in a tile row


def pack_left(source: Any, index: ElementIndex, first: Expr, count: Expr, depth: int, rows: Any, to: int) -> None:
    """Pack `count` rows of a row-major left operand, from row `first` on, to rows from `to` on.

    depth: the extent of the reduction.
    """
    with T.serial(0, count) as r:

        def copy(k: Expr, extent: int) -> None:
            vector_store(rows, _load(source, index(first + r, k), extent), to + r, k)

        with T.serial(0, depth // LANES) as nth:
            copy(nth * LANES, LANES)
        if depth % LANES:
            copy(depth // LANES * LANES, depth % LANES)
        if 0 < depth % STEP <= LANES:
            vector_store(rows, broadcast(0.0), to + r, depth // STEP * STEP + LANES)


def pack_transposed_left(
    source: Any, index: ElementIndex, first: Expr, count: Expr, min_count: int, depth: int, rows: Any, to: int
) -> None:
    """The same for a column-major left operand. `min_count` is the least value that `count` can have."""

    def transpose(k: Expr, extent: int) -> None:
        lines = []
        for i in range(extent):
            at = index(first, k + i)
            whole = min_count >= LANES
            lines.append(T.bind(vector_load(source, *at) if whole else masked_load(source, *at, count=count)))
        for r, line in enumerate(transpose_16x16([*lines, *[broadcast(0.0)] * (LANES - extent)])):
            vector_store(rows, line, to + r, k)

    with T.serial(0, depth // LANES) as nth:
        transpose(nth * LANES, LANES)
    if depth % LANES:
        transpose(depth // LANES * LANES, depth % LANES)
    if 0 < depth % STEP <= LANES:
        for r in range(LANES):
            vector_store(rows, broadcast(0.0), to + r, depth // STEP * STEP + LANES)


def pack_right(
    source: Any, index: ElementIndex, first: Expr, width: int, depth: int, packed: Any, panel: Expr, tile: Expr
) -> None:
    """Pack 16 columns of a row-major right operand, from column `first` on, to packed[panel, …, tile].

    width, depth: the extents of the columns and of the reduction.
    """

    def bits(row: Expr, count: int) -> Expr:
        return T.cast(float32_to_bf16(_load(source, index(row, first), count)), "uint32x16")

    def columns(count: int) -> None:
        with T.serial(0, depth // 2) as pair:
            both = T.bitwise_or(bits(pair * 2, count), T.shift_left(bits(pair * 2 + 1, count), broadcast_uint32(16)))
            T.buffer_store(packed, both, [panel, pair // LANES, tile, pair % LANES, ramp(0)])
        if depth % 2:
            pair = depth // 2
            T.buffer_store(packed, bits(depth - 1, count), [panel, pair // LANES, tile, pair % LANES, ramp(0)])

    with when(first + LANES <= width):
        columns(LANES)
    if width % LANES:
        with when(first + LANES > width):
            columns(width % LANES)
    for pair in range(-(-depth // 2), -(-depth // STEP) * LANES):
        T.buffer_store(packed, broadcast_uint32(0), [panel, pair // LANES, tile, pair % LANES, ramp(0)])


def pack_transposed_right(
    source: Any, index: ElementIndex, first: Expr, width: int, depth: int, packed: Any, panel: Expr, tile: Expr
) -> None:
    """The same for a column-major right operand.

    Behind the last column it is packed again; what is computed of it is not stored.
    """
    bits = T.alloc_buffer((LANES, STEP), "uint16", scope="local")  # TVM crashes on bfloat16 in variables

    def transpose(step: Expr, extent: int) -> None:
        lines = []
        for i in range(LANES):
            column = T.min(first + i, width - 1) if width % LANES else first + i
            if source.dtype == "uint16" and extent == STEP:
                *outer, k = index(step * STEP, column)
                line = source[(*outer, ramp(k, STEP))]
            else:
                low = _load(source, index(step * STEP, column), min(extent, LANES))
                high = broadcast(0.0)
                if extent > LANES:
                    high = _load(source, index(step * STEP + LANES, column), extent - LANES)
                T.buffer_store(bits, float32_pair_to_bf16(low, high), [i, ramp(0, STEP)])
                line = bits[i, ramp(0, STEP)]
            lines.append(T.bind(T.reinterpret("uint32x16", line)))
        for pair, line in enumerate(transpose_16x16(lines)):
            T.buffer_store(packed, line, [panel, step, tile, pair, ramp(0)])

    with T.serial(0, depth // STEP) as step:
        transpose(step, STEP)
    if depth % STEP:
        transpose(T.int32(depth // STEP), depth % STEP)


def _load(source: Any, index: tuple[Expr, ...], count: int) -> Expr:
    """16 floats from an index on; those behind the first `count` are zero."""
    return T.bind(vector_load(source, *index) if count == LANES else masked_load(source, *index, count=count))

"""Packs what was computed as AMX tiles (and dot products) want it: a left side in rows of 32 bfloat16, a right side in
rows of 16 pairs.

The sources are fp32 or bfloat16; `place` says where the element in row and column of a matrix lies. What lies behind
the end of the reduction becomes zero, since both sides hold what is no number otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tvm.script.ir_builder import tirx as T

from veltair.compiler.kernels.codegen.bf16 import float32_to_bf16
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import masked_load, vector_load, vector_store
from veltair.compiler.kernels.codegen.transpose import transpose_16x16
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast, broadcast_uint32, ramp

Place: TypeAlias = Callable[[Expr, Expr], tuple[Expr, ...]]  # of (row, column)
PAIR = 2 * LANES  # numbers of a tile row


def take_rows(source: Any, place: Place, first: Expr, count: Expr, depth: int, rows: Any, at: int) -> None:
    """`count` rows of a left side from `first` on, whose reduction of `depth` lies contiguous, to rows from `at` on."""
    with T.serial(0, count) as r:

        def some(k: Expr, taken: int) -> None:
            vector_store(rows, _taken(source, place(first + r, k), taken), at + r, k)

        with T.serial(0, depth // LANES) as nth:
            some(nth * LANES, LANES)
        if depth % LANES:
            some(depth // LANES * LANES, depth % LANES)
        if 0 < depth % PAIR <= LANES:
            vector_store(rows, broadcast(0.0), at + r, depth // PAIR * PAIR + LANES)


def turn_rows(source: Any, place: Place, first: Expr, count: Expr, least: int, depth: int, rows: Any, at: int) -> None:
    """The same of a left side whose columns lie contiguous; there are `least` rows at least."""

    def some(k: Expr, taken: int) -> None:
        lines = []
        for i in range(taken):
            where = place(first, k + i)
            lines.append(
                T.bind(vector_load(source, *where) if least >= LANES else masked_load(source, *where, count=count))
            )
        for r, line in enumerate(transpose_16x16([*lines, *[broadcast(0.0)] * (LANES - taken)])):
            vector_store(rows, line, at + r, k)

    with T.serial(0, depth // LANES) as nth:
        some(nth * LANES, LANES)
    if depth % LANES:
        some(depth // LANES * LANES, depth % LANES)
    if 0 < depth % PAIR <= LANES:
        for r in range(LANES):
            vector_store(rows, broadcast(0.0), at + r, depth // PAIR * PAIR + LANES)


def turn_columns(
    source: Any, place: Place, first: Expr, width: int, depth: int, packed: Any, to: Expr, half: Expr
) -> None:
    """16 columns of a right side from `first` on, each of them contiguous, to packed[to, …, half].

    Behind the last column it is there again: what comes of it is not stored.
    """

    bits = T.alloc_buffer((LANES, PAIR), "uint16", scope="local")  # TVM crashes on bfloat16 in variables

    def step(nth: Expr, taken: int) -> None:
        lines = []
        for i in range(LANES):
            column = T.min(first + i, width - 1) if width % LANES else first + i
            if source.dtype == "uint16" and taken == PAIR:
                line = source[_wide(place(nth * PAIR, column))]
            else:
                low = _taken(source, place(nth * PAIR, column), min(taken, LANES))
                high = (
                    _taken(source, place(nth * PAIR + LANES, column), taken - LANES)
                    if taken > LANES
                    else broadcast(0.0)
                )
                name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"  # the second operand lands below
                both = T.reinterpret("uint16x32", T.call_llvm_pure_intrin("bfloat16x32", name, high, low))
                T.buffer_store(bits, both, [i, ramp(0, PAIR)])
                line = bits[i, ramp(0, PAIR)]
            lines.append(T.bind(T.reinterpret("uint32x16", line)))
        for pair, line in enumerate(transpose_16x16(lines)):
            T.buffer_store(packed, line, [to, nth, half, pair, ramp(0)])

    with T.serial(0, depth // PAIR) as nth:
        step(nth, PAIR)
    if depth % PAIR:
        step(T.int32(depth // PAIR), depth % PAIR)


def pair_rows(
    source: Any, place: Place, first: Expr, width: int, depth: int, packed: Any, to: Expr, half: Expr
) -> None:
    """The same of a right side whose rows lie contiguous."""

    def bits(row: Expr, taken: int) -> Expr:
        return T.cast(float32_to_bf16(_taken(source, place(row, first), taken)), "uint32x16")

    def columns(taken: int) -> None:
        with T.serial(0, depth // 2) as pair:
            both = T.bitwise_or(bits(pair * 2, taken), T.shift_left(bits(pair * 2 + 1, taken), broadcast_uint32(16)))
            T.buffer_store(packed, both, [to, pair // LANES, half, pair % LANES, ramp(0)])
        if depth % 2:
            pair = depth // 2
            T.buffer_store(packed, bits(depth - 1, taken), [to, pair // LANES, half, pair % LANES, ramp(0)])

    with when(first + LANES <= width):
        columns(LANES)
    if width % LANES:
        with when(first + LANES > width):
            columns(width % LANES)
    for pair in range(-(-depth // 2), -(-depth // PAIR) * LANES):
        T.buffer_store(packed, broadcast_uint32(0), [to, pair // LANES, half, pair % LANES, ramp(0)])


def _taken(source: Any, index: tuple[Expr, ...], count: int) -> Expr:
    """16 floats from an index on, of which `count` are there."""
    return T.bind(vector_load(source, *index) if count == LANES else masked_load(source, *index, count=count))


def _wide(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return (*index[:-1], ramp(index[-1], PAIR))

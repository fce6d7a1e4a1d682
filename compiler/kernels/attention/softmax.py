"""Softmax of one row of scores, not yet divided by its sum: for kernels that divide later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.kernels.codegen.memory import vector_load, vector_store
from veltair.compiler.kernels.codegen.vector_math import LOG2_E, exp, max_lanes, sum_lanes
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast, ramp

UNROLLED = 4  # vectors whose greatest and sums are apart: those of one wait for each other
LOWEST = -1.0e38  # stands behind the last key; finite when scaled for exp2
# 2**f on [0, 1] to 8e-5, which is more than bfloat16 keeps; highest power first.
EXP2 = (0.0780226977, 0.2260685630, 0.6958336429, 0.9999251397)


def mask_index(mask: Any, image: Expr, head: Expr, row: Expr) -> tuple[Expr, ...]:
    """Where a row of scores finds its mask, which broadcasts to (images, heads, tokens, keys)."""
    if mask is None:
        return ()
    spread = zip(mask.shape[:3], (image, head, row), strict=True)
    return tuple(at if not _is_one(extent) else 0 for extent, at in spread)


def softmax_row(scores: Any, out: Any, row: Expr, keys: int, scale: float, mask: Any, where: tuple[Expr, ...]) -> Expr:
    """exp(s * scale + mask - greatest) of a row of `scores` to the same row of `out`; returns the sum of what stands
    there. Rows are padded to whole vectors; `out` gets zeros behind the last key.
    """
    vectors, rest = divmod(keys, LANES)
    extent = int(scores.shape[1])
    inside = T.ramp(0, 1, LANES) < T.broadcast(T.int32(rest), LANES)
    greatests = T.alloc_buffer((UNROLLED,), "float32x16", scope="local")
    totals = T.alloc_buffer((UNROLLED,), "float32x16", scope="local")
    narrow = out.dtype == "uint16"
    factor = LOG2_E if narrow else 1.0  # powers of two are cheaper

    def score(column: Expr, last: bool) -> Expr:
        value = vector_load(scores, row, column) * broadcast(scale * factor)
        if mask is not None:
            added = vector_load(mask, *where, column)
            value = value + (added * broadcast(factor) if narrow else added)
        return T.Select(inside, value, broadcast(LOWEST)) if last else value

    def passed(one: Callable[[Expr, int, bool], None]) -> None:
        """`one(column, i, last)` for each vector, of which i take turns."""
        with T.serial(0, vectors // UNROLLED) as step:
            for i in range(UNROLLED):
                one(T.bind((step * UNROLLED + i) * LANES), i, False)
        for i in range(vectors % UNROLLED):
            one((vectors // UNROLLED * UNROLLED + i) * LANES, i, False)
        if rest:
            one(vectors * LANES, vectors % UNROLLED, True)

    def keep(column: Expr, i: int, last: bool) -> None:
        value = T.bind(score(column, last))
        if mask is not None:
            T.buffer_store(scores, value, [row, ramp(column)])
        T.buffer_store(greatests, T.max(greatests[i], value), [i])

    def put(column: Expr, i: int, last: bool) -> None:
        value = vector_load(scores, row, column) if mask is not None else score(column, last)
        below = T.bind(value - greatest)
        likely = T.bind(exp2_coarse(below) if narrow else exp(below))
        T.buffer_store(totals, totals[i] + likely, [i])
        vector_store(out, likely, row, column)

    for i in range(UNROLLED):
        T.buffer_store(greatests, broadcast(LOWEST), [i])
        T.buffer_store(totals, broadcast(0.0), [i])
    passed(keep)
    among = T.bind(T.max(T.max(greatests[0], greatests[1]), T.max(greatests[2], greatests[3])))
    greatest = T.bind(T.broadcast(max_lanes(among), LANES))
    passed(put)
    for v in range(vectors + bool(rest), extent // LANES):  # fewer than a step of the product that follows
        vector_store(out, broadcast(0.0), row, v * LANES)
    return T.bind(sum_lanes(totals[0] + totals[1] + (totals[2] + totals[3])))


def exp2_coarse(x: Expr) -> Expr:
    """2**x to 8e-5 of it, 2**-125 far below; AVX-512."""
    x = T.bind(T.max(broadcast(-125.0), x))  # infinity has no fraction, and a subnormal result costs 150 cycles
    name = "llvm.x86.avx512.mask.{}.ps.512"
    rest = (broadcast(0.0), T.uint16(0xFFFF), T.int32(4))  # no lane is masked, the rounding is the current one
    above = T.int32(9)  # what lies above the next lower whole number, no exception
    fraction = T.bind(T.call_llvm_pure_intrin("float32x16", name.format("reduce"), x, above, *rest))
    value = broadcast(EXP2[0])
    for coefficient in EXP2[1:]:
        value = value * fraction + broadcast(coefficient)
    return T.call_llvm_pure_intrin("float32x16", name.format("scalef"), T.bind(value), x, *rest)  # by whole powers


def _is_one(extent: Any) -> bool:
    return (isinstance(extent, int) and extent == 1) or getattr(extent, "value", 0) == 1

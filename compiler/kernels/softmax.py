"""Softmax of one row of scores, not yet divided by its sum: for kernels that divide later."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.kernels.emit import LANES, Expr, lanes, load, splat, store
from veltair.compiler.kernels.vectormath import LOG2_E, exp, max_lanes, sum_lanes

LOWEST = -1.0e38  # stands behind the last key; finite when scaled for exp2
# 2**f on [-1/2, 1/2] to 1e-4, which is more than bfloat16 keeps; highest power first.
EXP2 = (0.05517156, 0.24261118, 0.69326101, 0.99992807)


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
    state = T.alloc_buffer((2,), "float32x16", scope="local")
    narrow = out.dtype == "uint16"

    def score(column: Expr, last: bool) -> Expr:
        value = load(scores, row, column) * splat(scale)
        if mask is not None:
            value = value + load(mask, *where, column)
        return T.Select(inside, value, splat(LOWEST)) if last else value

    T.buffer_store(state, splat(LOWEST), [0])
    T.buffer_store(state, splat(0.0), [1])

    def keep(column: Expr, last: bool) -> None:
        value = T.bind(score(column, last))
        if mask is not None:
            T.buffer_store(scores, value, [row, lanes(column)])
        T.buffer_store(state, T.max(state[0], value), [0])

    def put(column: Expr, last: bool) -> None:
        value = load(scores, row, column) if mask is not None else score(column, last)
        below = T.bind(value - greatest)
        likely = T.bind(exp2_coarse(T.bind(below * splat(LOG2_E))) if narrow else exp(below))
        T.buffer_store(state, state[1] + likely, [1])
        store(out, likely, row, column)

    with T.serial(0, vectors) as v:
        keep(v * LANES, False)
    if rest:
        keep(vectors * LANES, True)
    greatest = T.bind(T.broadcast(max_lanes(state[0]), LANES))
    with T.serial(0, vectors) as v:
        put(v * LANES, False)
    if rest:
        put(vectors * LANES, True)
    for v in range(vectors + bool(rest), extent // LANES):  # fewer than a step of the product that follows
        store(out, splat(0.0), row, v * LANES)
    return T.bind(sum_lanes(state[1]))


def exp2_coarse(x: Expr) -> Expr:
    """2**x to 1e-4 of it, 2**-125 far below; AVX-512."""
    x = T.bind(T.max(splat(-125.0), x))  # infinity has no fraction, and a subnormal result costs 150 cycles
    whole = T.bind(T.nearbyint(x))
    fraction = T.bind(x - whole)
    value = splat(EXP2[0])
    for coefficient in EXP2[1:]:
        value = value * fraction + splat(coefficient)
    return T.call_llvm_pure_intrin(
        "float32x16",
        "llvm.x86.avx512.mask.scalef.ps.512",
        T.bind(value),
        whole,
        splat(0.0),
        T.uint16(0xFFFF),
        T.int32(4),
    )


def _is_one(extent: Any) -> bool:
    return (isinstance(extent, int) and extent == 1) or getattr(extent, "value", 0) == 1

"""Softmax of one row of scores, not yet divided by its sum: for kernels that divide later."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.vector_math import LOG2_E, exp, max_lanes, sum_lanes
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp

UNROLLED = 4  # vectors whose maxima and sums are separate: those of one wait for each other
LOWEST = float(np.finfo(np.float32).min)  # what exporters add to the score of a key that must not count
NO_KEY = 0.5  # less than the largest key of a row adds to its sum
# 2**f on [0, 1] to 8e-5, which is more than bfloat16 keeps; highest power first.
EXP2 = (0.0780226977, 0.2260685630, 0.6958336429, 0.9999251397)


@dataclass(frozen=True, slots=True)
class RowSoftmax:
    """Emits the softmax of rows of `scores` to the same rows of `out`; the buffers may be one.

    ::

        softmax = RowSoftmax(scores, scores, keys, scale, mask)
        total = softmax.emit(row, softmax.mask_index(image, head, token))
    """

    scores: Any  # buffer (rows, keys padded to whole vectors)
    out: Any  # likewise; fp32 or bfloat16
    keys: int
    scale: float
    mask: Any | None  # buffer that broadcasts to (images, heads, tokens, keys)

    def mask_index(self, image: Expr, head: Expr, token: Expr) -> tuple[Expr, ...]:
        """Where a row of scores finds its mask; () without a mask. One of a fixed number of images repeats."""
        if self.mask is None:
            return ()
        images = getattr(self.mask.shape[0], "value", self.mask.shape[0])
        if isinstance(images, int) and images > 1:
            image = T.floormod(image, T.int32(images))
        axes = zip(self.mask.shape[:3], (image, head, token), strict=True)
        return tuple(at if not _is_one(extent) else 0 for extent, at in axes)

    def emit(self, row: Expr, mask_index: tuple[Expr, ...]) -> Expr:
        """Store exp(score * scale + mask - maximum) for each key, and zeros behind the last key.

        Returns the sum of what was stored. Where a mask of -infinity hides every key of a row, that is `NO_KEY`, and
        zeros are stored; bfloat16 takes -infinity for the lowest float, which hides no key if it is on all of them.
        """
        maxima = T.alloc_buffer((UNROLLED,), "float32x16", scope="local")
        totals = T.alloc_buffer((UNROLLED,), "float32x16", scope="local")

        def update_maximum(column: Expr, i: int, last: bool) -> None:
            value = T.bind(self._score(row, column, mask_index, last))
            if self.mask is not None:
                T.buffer_store(self.scores, value, [row, ramp(column)])
            T.buffer_store(maxima, T.max(maxima[i], value), [i])

        def store_exponential(column: Expr, i: int, last: bool) -> None:
            masked = self.mask is not None  # then the first pass has stored the final scores
            value = vector_load(self.scores, row, column) if masked else self._score(row, column, (), last)
            below = T.bind(value - maximum)
            likely = T.bind(approximate_exp2(below) if self._narrow else exp(below))
            T.buffer_store(totals, totals[i] + likely, [i])
            vector_store(self.out, likely, row, column)

        for i in range(UNROLLED):
            T.buffer_store(maxima, broadcast(LOWEST), [i])
            T.buffer_store(totals, broadcast(0.0), [i])
        self._for_each_vector(update_maximum)
        among = T.bind(T.max(T.max(maxima[0], maxima[1]), T.max(maxima[2], maxima[3])))
        maximum = T.bind(T.broadcast(max_lanes(among), LANES))
        self._for_each_vector(store_exponential)
        for vector in range(-(-self.keys // LANES), int(self.scores.shape[1]) // LANES):  # fewer than the next step
            vector_store(self.out, broadcast(0.0), row, vector * LANES)
        total = sum_lanes(totals[0] + totals[1] + (totals[2] + totals[3]))
        return T.bind(total if self._narrow else T.max(total, T.float32(NO_KEY)))

    @property
    def _narrow(self) -> bool:
        """Whether the result is bfloat16, for which powers of two are computed, which are cheaper."""
        return str(self.out.dtype) == "uint16"

    def _score(self, row: Expr, column: Expr, mask_index: tuple[Expr, ...], last: bool) -> Expr:
        """16 scores, scaled and masked, times log2(e) for powers of two."""
        factor = LOG2_E if self._narrow else 1.0
        value = vector_load(self.scores, row, column) * broadcast(self.scale * factor)
        if self.mask is not None:
            added = vector_load(self.mask, *mask_index, column)
            value = T.max(value + added * broadcast(factor), broadcast(LOWEST)) if self._narrow else value + added
        inside = T.ramp(0, 1, LANES) < T.broadcast(T.int32(self.keys % LANES), LANES)
        return T.Select(inside, value, broadcast(-math.inf)) if last else value

    def _for_each_vector(self, emit: Callable[[Expr, int, bool], None]) -> None:
        """Call `emit(column, i, last)` for each vector of a row. i counts to UNROLLED in turn; `last` is true for a
        vector that the keys do not fill."""
        vectors, rest = divmod(self.keys, LANES)
        with T.serial(0, vectors // UNROLLED) as step:
            for i in range(UNROLLED):
                emit(T.bind((step * UNROLLED + i) * LANES), i, False)
        for i in range(vectors % UNROLLED):
            emit((vectors // UNROLLED * UNROLLED + i) * LANES, i, False)
        if rest:
            emit(vectors * LANES, vectors % UNROLLED, True)


def approximate_exp2(x: Expr) -> Expr:
    """2**x with a relative error of 8e-5, and 2**-125 far below. Needs AVX-512."""
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

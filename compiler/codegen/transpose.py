"""Transposition of vectors of 16 lanes in registers."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import LANES, Expr, broadcast


def transpose_16x16(rows: Sequence[Expr]) -> list[Expr]:
    """The transpose of 16 vectors of 16: blocks of 8, 4, 2 and 1 change places across the diagonal."""
    found = list(rows)
    for distance in (8, 4, 2, 1):
        upper = [i for i in range(LANES) if not i & distance]
        low = [T.int32(lane + LANES - distance if lane & distance else lane) for lane in range(LANES)]
        high = [T.int32(lane + LANES if lane & distance else lane + distance) for lane in range(LANES)]
        for i in upper:
            pair = [found[i], found[i + distance]]
            found[i], found[i + distance] = T.bind(T.Shuffle(pair, low)), T.bind(T.Shuffle(pair, high))
    return found


def interleave_channels(channels: Sequence[Expr]) -> list[Expr]:
    """Turn one vector of 16 pixels for each channel into pixels one after the other, their channels side by side."""
    count = len(channels)
    if count == 1:
        return list(channels)
    if count % 2 == 0:
        vectors = []
        for pair in zip(interleave_channels(channels[::2]), interleave_channels(channels[1::2]), strict=True):
            for start in (0, LANES // 2):
                order = [T.int32(start + lane // 2 + lane % 2 * LANES) for lane in range(LANES)]
                vectors.append(T.bind(T.Shuffle(list(pair), order)))
        return vectors
    vectors = []
    for start in range(0, count * LANES, LANES):
        value = broadcast(0.0)
        for c, found in enumerate(channels):
            places = range(start, start + LANES)
            order = [LANES + at // count if at % count == c else lane for lane, at in enumerate(places)]
            value = T.bind(T.Shuffle([value, found], list(map(T.int32, order))))
        vectors.append(value)
    return vectors

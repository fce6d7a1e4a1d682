"""Direct convolution in fp32 on vectors, for AVX2 and AVX-512.

A register tile holds up to `pixels` outputs x `channels` vectors of 16 output channels; each input value is broadcast
against the weight vectors. A strip is one output row, or several where a row is shorter than a tile: each output of a
tile has its own address, so tiles run on over row ends. A task is one group of output channels over `rows` output rows.

The weights of a group, its panel, are read once for each tile of the task. Meanwhile the next group's panel is
prefetched, a share with each tile, so that weights that come from memory come at an even rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import log2
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.ir import Kernel, LayerSpec, Point
from veltair.compiler.kernels.convolution import (
    balanced,
    first_tap,
    geometry,
    group_sizes,
    where_present,
)
from veltair.compiler.kernels.emit import LANES, Expr, activate, lanes, load, pad_to, prefetch, primitive, store, when

UNROLL = 4  # input channels of one turn of the innermost loop
STRIP = 64  # outputs of a strip of several rows, at most: each of its tiles has code of its own


def points(spec: LayerSpec, features: frozenset[str]) -> list[Point]:
    oh, ow, *_ = geometry(spec)
    blocks = -(-spec.outputs[0].shape[1] // LANES)
    each = registers_each(features)
    sizes = [c for c in ((4, 2, 3, 1) if each == 1 else (1, 2)) if register_tile(c, features)]
    found: list[tuple[float, Point]] = []
    for channels in group_sizes(blocks, sizes):
        most = register_tile(channels, features)
        for pixels in sorted({most, -(-most * 2 // 3)}):
            join = rows_together(oh, ow, pixels, channels, each)
            cost = strip_cycles(join * ow, pixels, channels, each) / (join * ow * channels * each)
            for rows, liking in heights(oh, join, -(-blocks // channels)):
                point: Point = {"algorithm": "direct", "channels": channels, "pixels": pixels, "rows": rows}
                found.append((cost + liking, point))
    return likely(found)


def build(spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
    x, y = spec.inputs[0], spec.outputs[0]
    channels, pixels, rows = int(point["channels"]), int(point["pixels"]), int(point["rows"])
    oh, ow, kh, kw, sh, sw, dh, dw = geometry(spec)
    inner, width = x.block, channels * LANES
    outs, chunks = -(-y.shape[1] // LANES), -(-oh // rows)
    weight, blocks = spec.weights["weight"], -(-x.shape[1] // inner)
    groups = -(-outs // channels)
    steps = blocks * kh * kw
    join = rows_together(oh, ow, pixels, channels, registers_each(features))
    top, left = first_tap(spec)
    activation = str(spec.attributes["activation"])
    each = -(-join * ow // pixels)  # tiles of a strip
    tiles = -(-oh // join) * each  # of a group
    lines = -(-inner * channels // tiles)  # of the next panel, to be fetched at one step of one tile
    ahead = tiles <= inner * channels  # else reading a panel is nothing beside its use
    unroll = UNROLL if inner % UNROLL == 0 else 1
    final = x.physical[1] - 1  # block of input channels, of which there may be fewer than `inner`
    stretches, final_stretches = inner // unroll, -(-(x.shape[1] - final * inner) // unroll)

    weight = pad_to(pad_to(weight, 0, width), 1, inner)
    packed = weight.reshape(groups, width, blocks, inner, kh, kw).transpose(0, 2, 4, 5, 3, 1)
    packed = np.ascontiguousarray(packed).reshape(groups, -1)  # of (groups, IC/b, KH, KW, b, channels * 16)
    bias = pad_to(spec.weights["bias"], 0, width)

    def body(X: Any, *rest: Any) -> None:
        residual = rest[0] if len(spec.inputs) > 1 else None
        W, bias_, Y = rest[-3:]

        def tile(acc: Any, image: Expr, group: Expr, places: list[tuple[Expr, Expr]], turn: Expr) -> None:
            """The outputs at `places`; the `turn`-th tile of its group."""
            for c in range(channels):
                start = T.bind(load(bias_, (group * channels + c) * LANES))
                for p in range(len(places)):
                    T.buffer_store(acc, start, [p * channels + c])
            with T.grid(blocks, kh, kw) as (b, u, v):
                step = T.bind((b * kh + u) * kw + v)
                if ahead:
                    for line in range(lines):
                        at = ((turn * steps + step) * lines + line) * LANES
                        prefetch(W[group + 1, at])
                present = stretches
                if final_stretches < stretches:
                    present = T.bind(T.Select(b < final, T.int32(stretches), T.int32(final_stretches)))
                with T.serial(0, present) as stretch:
                    for k in range(unroll):
                        i = stretch * unroll + k
                        taps = [
                            T.bind(W[group, lanes((step * inner + i) * width + c * LANES)]) for c in range(channels)
                        ]
                        for p, (row, column) in enumerate(places):
                            value = X[image, b, row * sh + u * dh + top, column * sw + v * dw + left, i]
                            value = T.bind(T.broadcast(value, LANES))
                            for c in range(channels):
                                at = p * channels + c
                                T.buffer_store(acc, acc[at] + value * taps[c], [at])
            for p, (row, column) in enumerate(places):
                for c in range(channels):
                    with where_present(outs, channels, group, c):
                        block = group * channels + c
                        result = acc[p * channels + c]
                        if residual is not None:
                            halo = spec.inputs[1].halo
                            result = result + load(residual, image, block, row + halo.top, column + halo.left, 0)
                        at = (row + y.halo.top, column + y.halo.left)
                        store(Y, activate(result, activation), image, block, *at, 0)

        with T.parallel(0, X.shape[0] * groups * chunks) as task:
            acc = T.alloc_buffer((pixels * channels,), "float32x16", scope="local")
            image = T.bind(task // (groups * chunks))
            group, first = T.bind(task // chunks % groups), T.bind(task % chunks * rows)

            def some(row: Expr, cell: Expr, size: int, height: int, nth: Expr) -> None:
                places = [place(row, cell + p, ow, height) for p in range(size)]
                tile(acc, image, group, places, row // join * each + nth)

            tiles_of_rows(first, rows, (oh, ow), join, pixels, some)

    function = primitive([*spec.inputs, packed, bias, *spec.outputs], body)
    taken = (rows * sh + kh - 1) * ow * sw * blocks * inner * 4  # input rows of a task
    block_size = taken + packed[0].nbytes + rows * ow * width * 4
    return Kernel(function, (packed, bias), block_size, groups * chunks * pixels * channels)


def heights(oh: int, join: int, groups: int) -> Iterator[tuple[int, float]]:
    """Rows of a task, and what speaks against so many: far from five, an uneven last chunk, too few tasks."""
    for rows in sorted({min(oh, -(-r // join) * join) for r in (1, 4, 7, 14, 56)}):
        chunks = -(-oh // rows)
        uneven = chunks * rows / oh - 1  # what the last chunk lacks
        yield rows, 0.003 * abs(log2(rows / 5)) + 0.02 * uneven + 0.1 * (chunks * groups < 2)


def likely(estimated: Sequence[tuple[float, Point]]) -> list[Point]:
    """Points with their estimated costs, the best first; without those that are estimated far worse."""
    best = min(cost for cost, _ in estimated)
    return [point for cost, point in sorted(estimated, key=lambda pair: pair[0]) if cost < 1.6 * best]


def place(row: Expr, cell: Expr, ow: int, height: int) -> tuple[Expr, Expr]:
    """Row and column of a cell of a strip of `height` rows from `row` on."""
    return (row, cell) if height == 1 else (row + cell // ow, cell % ow)


def tiles_of_rows(
    first: Expr, rows: int, size: tuple[int, int], join: int, pixels: int, tile: Callable[..., None]
) -> None:
    """Calls `tile(row, cell, count, height, nth)` for the tiles of `rows` output rows from `first` on, in strips of
    `join`: `count` cells from `cell` on of the strip of `height` rows from `row` on, of which it is the nth tile."""
    oh, ow = size

    def strip(row: Expr, height: int) -> None:
        done = 0
        for start, count, cells in balanced(height * ow, pixels):
            if height == 1:
                with T.serial(0, count) as t:
                    tile(row, T.bind(t * cells + start), cells, height, done + t)
            else:
                for t in range(count):
                    tile(row, start + t * cells, cells, height, done + t)
            done += count

    with T.serial(0, T.min(rows, oh - first) // join) as s:
        strip(T.bind(first + s * join), join)
    if oh % join:
        with when(first + rows >= oh):
            strip(oh - oh % join, oh % join)


def registers_each(features: frozenset[str]) -> int:
    """Registers that a vector of 16 floats takes."""
    return 1 if "avx512" in features else 2


def register_tile(channels: int, features: frozenset[str]) -> int:
    """Outputs that fit the registers beside the weights and one input."""
    each = registers_each(features)
    return max((32 // each - 1) // (each * channels) - 1, 0)


def rows_together(oh: int, ow: int, pixels: int, channels: int, each: int) -> int:
    """Rows of a strip: one, or as few as make for full tiles."""
    heights = range(1, min(oh, max(1, STRIP // ow)) + 1) if ow < 2 * each * pixels else range(1, 2)
    return min(heights, key=lambda h: (round(strip_cycles(h * ow, pixels, channels, each) / (h * ow), 2), h))


def strip_cycles(cells: int, pixels: int, channels: int, each: int) -> float:
    """Of one step of the reduction: two products a cycle, two loads a cycle, each sum waits for the last: four cycles,
    and one more where all registers of a narrow machine are needed to get there."""
    vectors = channels * each
    tiles = balanced(cells, pixels)
    return sum(count * max(size * vectors / 2, (size + vectors) / 2, 3.0 + each) for _, count, size in tiles)

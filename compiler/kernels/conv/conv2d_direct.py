"""Direct convolution on vectors: in fp32 for AVX2 and AVX-512, in bfloat16 for AVX-512-bf16.

A register tile holds up to `pixels` outputs x `channels` vectors of 16 output channels; each input value, or pair of
neighbouring channels, is broadcast against the weight vectors. A strip is one output row, or several where a row is
shorter than a tile: each output of a tile has its own address, so tiles run on over row ends. A task is one group of
output channels over `rows` output rows.

The weights of a group, its panel, are read once for each tile of the task. Meanwhile the next group's panel is
prefetched, a share with each tile, so that weights that come from memory come at an even rate.

Where the layer ends with a pool over 2 x 2 neighbours, an output is the greatest of four sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.codegen.activation import apply_activation
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import prefetch, vector_load, vector_store
from veltair.compiler.kernels.codegen.multiply_add import VALUES_PER_STEP, broadcast_input, multiply_add, reduction_body
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast, ramp
from veltair.compiler.kernels.codegen.weight_packing import pack_bf16_pairs, pad_axis
from veltair.compiler.kernels.conv.amx_tile_cover import folds
from veltair.compiler.kernels.conv.conv_geometry import (
    balanced,
    first_tap,
    folded,
    geometry,
    group_sizes,
    reach,
    where_present,
)

UNROLL = 4  # steps of the reduction in one turn of the innermost loop
STRIP = 64  # outputs of a strip of several rows, at most: each of its tiles has code of its own


def points(spec: LayerSpec, features: frozenset[str]) -> list[Point]:
    """pixels: outputs of a register tile; channels: its vectors; rows: output rows of a task."""
    oh, ow = spec.outputs[0].shape[2:]
    blocks = -(-spec.outputs[0].shape[1] // LANES)
    each, cells = registers_each(features), pooled_cells(spec)
    sizes = [c for c in ((4, 2, 3, 1) if each == 1 else (1, 2)) if register_tile(c, features)]
    found: list[tuple[float, Point]] = []
    for channels in group_sizes(blocks, sizes):
        most = register_tile(channels, features) // cells
        for pixels in sorted({most, -(-most * 2 // 3)}):
            join = rows_together(oh, ow, pixels, channels, each)
            cost = strip_cycles(join * ow, pixels, channels, each) / (join * ow * channels * each)
            if (
                VALUES_PER_STEP[spec.inputs[0].dtype] > 1
            ):  # a weight's bytes are used twice as fast: few tiles should read them
                cost += 0.25 / pixels
            for rows, liking in heights(oh, join, -(-blocks // channels)):
                point: Point = {"algorithm": "direct", "channels": channels, "pixels": pixels, "rows": rows}
                found.append((cost + liking, point))
    return likely(found)


def build(spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
    x, y = spec.inputs[0], spec.outputs[0]
    channels, pixels, rows = int(point["channels"]), int(point["pixels"]), int(point["rows"])
    full_h, full_w, _, _, sh, sw, dh, dw = geometry(spec)
    oh, ow = y.shape[2:]
    width, cells = channels * LANES, pooled_cells(spec)
    outs, chunks = -(-y.shape[1] // LANES), -(-oh // rows)
    step = VALUES_PER_STEP[x.dtype]
    packed, first_block = _panels(spec, width)
    groups, blocks, kh, kw, inner, _ = packed.shape
    packed = packed.reshape(groups, -1)
    bias = pad_axis(spec.weights["bias"], 0, width)
    taps = blocks * kh * kw
    join = rows_together(oh, ow, pixels, channels, registers_each(features))
    top, left = first_tap(spec)
    activation = spec.parameters_as(Conv2dParameters).activation
    each = -(-join * ow // pixels)  # tiles of a strip
    tiles = -(-oh // join) * each  # of a group
    lines = -(-inner * channels // tiles)  # of the next panel, to be fetched at one tap of one tile
    ahead = tiles <= inner * channels  # else reading a panel is nothing beside its use
    unroll = UNROLL if inner % UNROLL == 0 else 1
    final = x.physical[1] - 1  # block of input channels, of which there may be fewer than fill it
    stretches, final_stretches = inner // unroll, -(-(x.shape[1] - final * x.block) // (step * unroll))
    if inner * step != x.block:  # folded, so all are there
        final_stretches = stretches

    def body(X: Any, *rest: Any) -> None:
        residual = rest[0] if len(spec.inputs) > 1 else None
        W, bias_, Y = rest[-3:]

        def sources(row: Expr, column: Expr) -> list[tuple[Expr, Expr]]:
            """The convolution's outputs of which one is the greatest."""
            if cells == 1:
                return [(row, column)]
            below = [T.min(row * 2 + i, full_h - 1) if 2 * oh > full_h else row * 2 + i for i in range(2)]
            beside = [T.min(column * 2 + i, full_w - 1) if 2 * ow > full_w else column * 2 + i for i in range(2)]
            return [(r, c) for r in below for c in beside]

        def finish(acc: Any, image: Expr, group: Expr, p: int, row: Expr, column: Expr, c: int) -> None:
            result = reduce(T.max, [acc[(p * cells + cell) * channels + c] for cell in range(cells)])
            if residual is not None:
                block, lane = place_of(spec.inputs[1], group * channels + c)
                halo = spec.inputs[1].halo
                result = result + vector_load(residual, image, block, row + halo.top, column + halo.left, lane)
            block, lane = place_of(y, group * channels + c)
            at = (image, block, row + y.halo.top, column + y.halo.left)
            vector_store(Y, apply_activation(result, activation, approximate=step > 1), *at, lane)
            if y.block > LANES and outs % 2 and c == (outs - 1) % channels:
                with when(group * channels + c == outs - 1):
                    vector_store(Y, broadcast(0.0), *at, LANES)  # the other half of a block

        def tile(acc: Any, image: Expr, group: Expr, places: list[tuple[Expr, Expr]], turn: Expr) -> None:
            """The outputs at `places`; the `turn`-th tile of its group."""
            spots = [spot for place in places for spot in sources(*place)]
            for c in range(channels):
                start = T.bind(vector_load(bias_, (group * channels + c) * LANES))
                for p in range(len(spots)):
                    T.buffer_store(acc, start, [p * channels + c])
            with T.grid(blocks, kh, kw) as (b, u, v):
                tap = T.bind((b * kh + u) * kw + v)
                block = T.bind(first_block(group) + b)
                if ahead:
                    for line in range(lines):
                        at = ((turn * taps + tap) * lines + line) * LANES
                        prefetch(W[group + 1, at])
                present = stretches
                if final_stretches < stretches:
                    present = T.bind(T.Select(block < final, T.int32(stretches), T.int32(final_stretches)))
                with T.serial(0, present) as stretch:
                    for k in range(unroll):
                        i = stretch * unroll + k
                        weights = [
                            T.bind(W[group, ramp((tap * inner + i) * width + c * LANES)]) for c in range(channels)
                        ]
                        for p, (row, column) in enumerate(spots):
                            at = (image, block, row * sh + u * dh + top, column * sw + v * dw + left)
                            value = T.bind(broadcast_input(X, *at, i * step))
                            for c in range(channels):
                                total = multiply_add(acc[p * channels + c], value, weights[c])
                                T.buffer_store(acc, total, [p * channels + c])
            for p, (row, column) in enumerate(places):
                for c in range(channels):
                    with where_present(outs, channels, group, c):
                        finish(acc, image, group, p, row, column, c)

        with T.parallel(0, X.shape[0] * groups * chunks) as task:
            acc = T.alloc_buffer((pixels * cells * channels,), "float32x16", scope="local")
            image = T.bind(task // (groups * chunks))
            group, first = T.bind(task // chunks % groups), T.bind(task % chunks * rows)

            def some(row: Expr, cell: Expr, size: int, height: int, nth: Expr) -> None:
                places = [place(row, cell + p, ow, height) for p in range(size)]
                tile(acc, image, group, places, row // join * each + nth)

            tiles_of_rows(first, rows, (oh, ow), join, pixels, some)

    function = build_prim_func([*spec.inputs, packed, bias, *spec.outputs], reduction_body(x.dtype, body))
    item, apart = np.dtype(x.dtype).itemsize, (sh if cells == 1 else 2 * sh)  # input rows between outputs
    taken = (rows * apart + kh - 1) * full_w * sw * blocks * x.block * item  # input rows of a task
    block_size = taken + packed[0].nbytes + rows * ow * width * item
    return Kernel(function, (packed, bias), block_size, groups * chunks * pixels * channels)


def _panels(spec: LayerSpec, width: int) -> tuple[NDArray[Any], Callable[[Expr], Expr]]:
    """Weights (groups, IC/b, KH, KW, steps of a block, width), and the first block of input channels of a group.

    In bfloat16, the columns of a kernel over few channels are folded into these.
    """
    x = spec.inputs[0]
    wide, blocks, first_block = reach(spec, width)
    inner = x.block
    if x.dtype == "uint16" and folds(spec):
        rows = pad_axis(folded(spec, wide), 2, 2)
        wide, inner = rows.transpose(0, 2, 1)[..., None], rows.shape[2]
    wide = pad_axis(pad_axis(wide, 0, width), 1, inner)
    packed = wide.reshape(-1, width, blocks, inner, *wide.shape[2:]).transpose(0, 2, 4, 5, 3, 1)
    return pack_bf16_pairs(packed, 4) if x.dtype == "uint16" else np.ascontiguousarray(packed), first_block


def pooled_cells(spec: LayerSpec) -> int:
    """Outputs of the convolution that one of the layer is the greatest of."""
    return 4 if spec.parameters_as(Conv2dParameters).pooled else 1


def place_of(tensor: Activation, number: Expr) -> tuple[Expr, Expr]:
    """Block and lane of a vector of channels."""
    vectors = tensor.block // LANES
    return (number, 0) if vectors == 1 else (number // vectors, number % vectors * LANES)


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

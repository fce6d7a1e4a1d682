"""Convolution in bfloat16 on AMX tiles.

Four accumulator tiles make 32 outputs x 32 output channels, or 64 x 16; each step of 32 products loads tiles of inputs
(see `cover.py`) and of weights, of which 64 x 16 reads each but once where an image has no more outputs.

A convolution over few channels (an image) folds its columns into the channels: with the channels innermost, the
`KW x IC` inputs of a kernel row lie side by side, and are one tile row.

Where the weights of a unit of channels exceed L1, the reduction may go in stretches: the products of one stretch for
all stacks of outputs, whose sums wait in L2, before the next. Its weights are read once from L2 and then from L1, and
those of the next come meanwhile.

Sums leave the tiles through memory. Their epilogue is done by vectors between the products of the next outputs, a few
rows a step, so that it costs next to nothing where there are products enough.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.codegen.activation import apply_activation
from veltair.compiler.kernels.codegen.amx import (
    load_tile,
    load_tile_configuration,
    multiply_bf16_tiles,
    release_tiles,
    store_tile,
    tile_configuration,
    zero_tile,
)
from veltair.compiler.kernels.codegen.bf16 import array_to_bf16, float32_pair_to_bf16
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import allocate_scratch, prefetch, vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.kernels.codegen.weight_packing import pad_axis
from veltair.compiler.kernels.conv.amx_tile_cover import BLOCK, DEPTH, TILE, Cover, folds, narrow
from veltair.compiler.kernels.conv.conv_geometry import folded, geometry, reach

AHEAD_STEPS = 64  # of the weights that are prefetched where each is read once
LATE_STEPS = 16  # last ones of a long reduction, in which sums are finished: their lines are still in L1 when the next
# sums are stored there, and stores that miss it wait for one another (a sixth of the time of 72 steps)


Between = Callable[[int], None]


class Place(NamedTuple):
    """What is computed at once."""

    unit: Expr  # of output channels
    stack: Expr  # of outputs
    kept: Expr  # where its sums lie


def conv2d_amx(spec: LayerSpec, point: Point) -> Kernel:
    x, y = spec.inputs[0], spec.outputs[0]
    _, _, kh, _, sh, sw, dh, dw = geometry(spec)
    mode, channels, chunks = str(point["mode"]), int(point["channels"]), int(point["chunks"])
    cover = Cover(spec, mode)
    height, width = cover.height, 4 // cover.height  # tiles of a register block
    unit = width * TILE  # its output channels
    channels *= 1 if narrow(spec) else BLOCK // unit
    stacks, outputs = cover.stacks, cover.rows
    each = -(-stacks // chunks)
    wide, _, first_block = reach(spec, BLOCK)
    weight = _pack(spec, wide, width)  # (OC/unit, steps…, width, 16, 16, 2)
    units, depth, _, columns = weight.shape[:4]
    groups = units // channels
    bias = pad_axis(spec.weights["bias"], 0, BLOCK)
    activation = spec.parameters_as(Conv2dParameters).activation
    taps = kh * columns
    stretch = int(point["stretch"]) if "stretch" in point else depth  # blocks of input channels
    parts = depth // stretch
    last = depth - (parts - 1) * stretch  # blocks of the last one
    kept = each * channels if parts > 1 else 1  # stacks of sums
    # Of the weights of the next task, fetched at one step of one stack: they come while these are in use. Weights
    # that are used but once are fetched a distance ahead.
    lines = -(-unit // (each if parts > 1 else stacks)) if point["ahead"] else 0
    once = mode == "tall"
    distance = AHEAD_STEPS * unit * DEPTH if once else 0
    # The last steps of long reductions finish the sums before, as many at each; code of the others is kept short.
    tail = last if last * taps <= 3 * LATE_STEPS else -(-LATE_STEPS // taps)
    rows = -(-cover.finished // (tail * taps))
    finishing = tail * taps - -(-cover.finished // rows)

    def body(X: Any, *rest: Any) -> None:
        residual = rest[0] if len(spec.inputs) > 1 else None
        W, bias_, configuration, Y = rest[-4:]

        def copied() -> Any:
            """The inputs of each step in the order of the outputs."""
            oh, ow = cover.oh, cover.ow
            shape = (X.shape[0], x.physical[1], kh, columns, stacks * outputs, DEPTH)
            dense = T.alloc_buffer(shape, "uint16", scope="global")
            T.buffer_store(dense, T.uint16(0), [extent - 1 for extent in shape])  # see emit.scratch
            with T.parallel(0, X.shape[0] * x.physical[1] * kh) as part:
                image, block = T.bind(part // (x.physical[1] * kh)), T.bind(part // kh % x.physical[1])
                u = T.bind(part % kh)
                with T.grid(oh, ow) as (row, column):
                    for v in range(columns):
                        place = (row * sh + u * dh + cover.top, column * sw + v * dw + cover.left)
                        value = X[image, block, *place, T.ramp(0, 1, DEPTH)]
                        T.buffer_store(dense, value, [image, block, u, v, row * ow + column, T.ramp(0, 1, DEPTH)])
            return dense

        def products(
            source: Any, image: Expr, at: Place, start: Expr, blocks: int, between: Between | None = None
        ) -> None:
            """Adds the products of `blocks` blocks of input channels, from `start` on, of a stack of outputs x a
            unit of channels; `between(k)` makes code for behind the kth of the steps that finish those before."""

            def one(block: Expr, u: Expr, v: int) -> None:
                for line in range(lines):
                    turn = at.kept if parts > 1 else at.stack
                    fetched = (((turn * blocks + block) * taps + u * columns + v) * lines + line) * DEPTH + distance
                    behind = (at.unit, 0) if once else (at.unit + channels - 1, start + blocks)
                    prefetch(W[*behind, 0, 0, 0, 0, 0, fetched])
                for tile in range(width):
                    first = T.address_of(W[at.unit, start + block, u, v, tile, 0, 0, 0])
                    load_tile(8 - width + tile, first, 64)
                taken = first_block(at.unit * unit // BLOCK) + start + block
                for tile in range(height):
                    left = 4 + tile % (4 - width)
                    first = cover.address(source, image, taken, u, v, at.stack, tile)
                    load_tile(left, first, cover.stride_bytes)
                    for other in range(width):
                        multiply_bf16_tiles(tile * width + other, left, 8 - width + other)

            early = blocks - tail if between else blocks
            if early:
                with T.grid(early, kh) as (block, u):
                    for v in range(columns):
                        one(block, u, v)
            for k, (block, u, v) in enumerate(product(range(early, blocks), range(kh), range(columns))):
                one(block, u, v)
                if between:
                    between(k - finishing)

        def finish(image: Expr, at: Place, n: Expr, sums: Any) -> None:
            """The nth output of a stack."""
            sources, row, column = cover.output(at.stack, n)
            first = T.bind(at.unit * unit)
            block, lane = T.bind(first // BLOCK), T.bind(first % BLOCK)
            starts = range(0, unit, LANES)
            values = [reduce(T.max, [vector_load(sums, at.kept, r, i) for r in sources]) for i in starts]
            values = [value + vector_load(bias_, first + i) for value, i in zip(values, starts, strict=True)]
            if residual is not None:
                halo = spec.inputs[1].halo
                where = (image, block, row + halo.top, column + halo.left)
                added = [vector_load(residual, *where, lane + i) for i in starts]
                values = [value + more for value, more in zip(values, added, strict=True)]
            where = (image, block, row + y.halo.top, column + y.halo.left)
            if narrow(spec):
                values.append(broadcast(0.0))  # the other half of a block
            if len(values) == 1:
                vector_store(Y, apply_activation(values[0], activation, approximate=True), *where, lane)
                return
            early = "none" if activation == "relu" else activation
            low, high = (apply_activation(value, early, approximate=True) for value in values)
            bits = float32_pair_to_bf16(low, high)
            if activation == "relu":  # negative floats are negative as integers
                positive = T.max(T.reinterpret("int16x32", bits), T.broadcast(T.int16(0), BLOCK))
                bits = T.reinterpret("uint16x32", positive)
            T.buffer_store(Y, bits, [*where, T.ramp(0, 1, BLOCK)])

        source = copied() if cover.mode == "dense" else X
        with T.parallel(0, X.shape[0] * groups * chunks) as task:
            sums = allocate_scratch((kept, outputs, unit), "float32")
            image = T.bind(task // (groups * chunks))
            group = T.bind(task // chunks % groups)
            first = T.bind(task % chunks * each)
            count = T.bind(T.max(T.min(each, stacks - first), 0) * channels)
            load_tile_configuration(T.address_of(configuration[0]))

            def place(nth: Expr) -> Place:
                unit, stack = T.bind(group * channels + nth % channels), T.bind(first + nth // channels)
                return Place(unit, stack, nth if parts > 1 else 0)

            def accumulators(move: Callable[[int, Expr, int], None], at: Place) -> None:
                for register in range(4):
                    corner = T.address_of(sums[at.kept, register // width * TILE, register % width * TILE])
                    move(register, corner, unit * 4)

            def clear() -> None:
                for register in range(4):
                    zero_tile(register)

            if parts > 1:
                with T.grid(parts - 1, count) as (part, nth):
                    at = place(nth)
                    with when(part == 0):
                        clear()
                    with when(part > 0):
                        accumulators(load_tile, at)
                    products(source, image, at, part * stretch, stretch)
                    accumulators(store_tile, at)
            with T.serial(0, count) as nth:
                at, earlier = place(nth), place(nth - 1)

                def between(k: int) -> None:
                    if k >= 0:
                        with when(nth > 0):
                            for n in range(k * rows, min(k * rows + rows, cover.finished)):
                                finish(image, earlier, n, sums)

                if parts > 1:
                    accumulators(load_tile, at)
                else:
                    clear()
                products(source, image, at, depth - last, last, between)
                accumulators(store_tile, at)
            with when(count > 0), T.serial(0, cover.finished) as n:
                finish(image, place(count - 1), n, sums)
            release_tiles()

    configuration = tile_configuration()
    function = build_prim_func([*spec.inputs, weight, bias, configuration, *spec.outputs], body)
    reads = kh * columns if cover.mode == "dense" else sh * sw  # inputs of an output, of all lanes of a block
    taken = each * outputs * reads * x.block * depth * 2
    block_size = taken + channels * weight[0].nbytes + each * outputs * unit * channels * 2
    return Kernel(function, (weight, bias, configuration), block_size, groups * chunks * 4)


def _pack(spec: LayerSpec, weight: NDArray[np.float32], width: int) -> NDArray[np.uint16]:
    """(OC/unit, IC/32, KH, KW, width, 16, 16, 2): for each step `width` tiles of 16 channel pairs x 16 output channels.

    Folded: (OC/unit, 1, KH, ceil(KW * IC / 32), width, 16, 16, 2), KW with the gaps of its dilation.
    """
    weight = pad_axis(weight, 0, TILE if narrow(spec) else BLOCK)
    if folds(spec):
        rows = pad_axis(folded(spec, weight), 2, DEPTH)
        steps = rows.reshape(len(rows) // (width * TILE), width, TILE, 1, rows.shape[1], -1, DEPTH // 2, 2)
        return array_to_bf16(np.ascontiguousarray(steps.transpose(0, 3, 4, 5, 1, 6, 2, 7)))
    oc, _, kh, kw = weight.shape
    padded = pad_axis(weight, 1, DEPTH)
    steps = padded.reshape(oc // (width * TILE), width, TILE, -1, DEPTH // 2, 2, kh, kw)
    return array_to_bf16(np.ascontiguousarray(steps.transpose(0, 3, 6, 7, 1, 4, 2, 5)))

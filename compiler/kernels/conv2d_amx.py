"""Convolution in bfloat16 on AMX tiles.

Four accumulator tiles make 32 outputs x 32 output channels, or 64 x 16; each step of 32 products loads tiles of inputs
(see `cover.py`) and of weights, of which 64 x 16 reads each but once where an image has no more outputs.

A convolution over few channels (an image) folds its columns into the channels: with the channels innermost, the
`KW x IC` inputs of a kernel row lie side by side, and are one tile row.

Sums leave the tiles through memory. Their epilogue is done by vectors between the products of the next outputs, a few
rows a step, so that it costs next to nothing where there are products enough.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.ir import Kernel, LayerSpec, Point
from veltair.compiler.kernels.convolution import geometry, reach
from veltair.compiler.kernels.cover import DEPTH, TILE, Cover, folds
from veltair.compiler.kernels.emit import (
    LANES,
    Expr,
    activate,
    amx,
    load,
    pad_to,
    prefetch,
    primitive,
    scratch,
    store,
    tile_configuration,
    to_bf16_bits,
    when,
)

FLAT_STRIDE = 2  # greatest stride of "flat" mode: what is thrown away grows with it, and what is read past the end
FEW = 8  # stacks up to which reading the weights takes long beside their use
BLOCK = 32  # output channels of a block of the layout: two tiles
COPIED_BYTES = 1 << 20  # of inputs in the order of outputs, at most: they stay in L2 until they are used
COPIED_STACKS = 2  # of a kernel with several taps: up to 10 % faster up to here, 20 to 60 % slower with more
AHEAD_STEPS = 64  # of the weights that are prefetched where each is read once
LATE_STEPS = 16  # last ones of a long reduction, in which sums are finished: their lines are still in L1 when the next
# sums are stored there, and stores that miss it wait for one another (a sixth of the time of 72 steps)


class Conv2dAmx:
    """inputs: x (N, IC/b, H, W, b)[, residual as the output], bfloat16; weights: weight (OC, IC, KH, KW), bias (OC)."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        blocks = -(-spec.outputs[0].shape[1] // BLOCK)
        stacks = {mode: Cover(spec, mode).stacks for mode in _modes(spec)}
        found: list[Point] = []
        for mode, count in stacks.items():
            for channels in (c for c in (1, 2, 4) if blocks % c == 0):
                for chunks in sorted({min(count, c) for c in (1, 2, 4, 8, 28)}):
                    if blocks // channels * chunks <= 512:
                        for ahead in (1, 0) if count <= FEW else (0,):
                            found.append({"mode": mode, "channels": channels, "chunks": chunks, "ahead": ahead})
        # Enough tasks for the cores at hand, the weights of a task small: a good first guess.
        return sorted(found, key=lambda p: (p["mode"] != found[0]["mode"], abs(int(p["chunks"]) - 2), p["channels"]))

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        _, _, kh, _, sh, sw, dh, dw = geometry(spec)
        mode, channels, chunks = str(point["mode"]), int(point["channels"]), int(point["chunks"])
        cover = Cover(spec, mode)
        height, width = cover.height, 4 // cover.height  # tiles of a register block
        unit = width * TILE  # its output channels
        channels *= BLOCK // unit
        stacks, outputs = cover.stacks, cover.rows
        each = -(-stacks // chunks)
        wide, _, first_block = reach(spec, BLOCK)
        weight = _pack(spec, wide, width)  # (OC/unit, steps…, width, 16, 16, 2)
        units, depth, _, columns = weight.shape[:4]
        groups = units // channels
        bias = pad_to(spec.weights["bias"], 0, BLOCK)
        activation = str(spec.attributes["activation"])
        steps = depth * kh * columns
        # Of the weights of the next task, fetched at one step of one stack: they come while these are in use. Weights
        # that are used but once are fetched a distance ahead.
        lines = -(-unit // stacks) if point["ahead"] else 0
        once = mode == "tall"
        distance = AHEAD_STEPS * unit * DEPTH if once else 0
        # The last steps of long reductions finish the sums before, as many at each; code of the others is kept short.
        tail = depth if steps <= 3 * LATE_STEPS else -(-LATE_STEPS // (kh * columns))
        rows = -(-outputs // (tail * kh * columns))
        finishing = tail * kh * columns - -(-outputs // rows)

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

            def products(source: Any, image: Expr, nth: Expr, stack: Expr, between: Callable[[int], None]) -> None:
                """Sums of a stack of outputs x a unit of channels in the accumulators; `between(k)` makes code for
                behind the kth of the steps that finish those before."""
                for register in range(4):
                    amx("tilezero", T.uint8(register))

                def one(step: Expr, u: Expr, v: int) -> None:
                    for line in range(lines):
                        at = ((stack * steps + (step * kh + u) * columns + v) * lines + line) * DEPTH
                        prefetch(W[nth + (0 if once else channels), 0, 0, 0, 0, 0, 0, at + distance])
                    for tile in range(width):
                        first = T.address_of(W[nth, step, u, v, tile, 0, 0, 0])
                        amx("tileloadd64", T.uint8(8 - width + tile), first, T.int64(64))
                    block = first_block(nth * unit // BLOCK) + step
                    for tile in range(height):
                        left = T.uint8(4 + tile % (4 - width))
                        first = cover.address(source, image, block, u, v, stack, tile)
                        amx("tileloadd64", left, first, T.int64(cover.stride_bytes))
                        for other in range(width):
                            amx("tdpbf16ps", T.uint8(tile * width + other), left, T.uint8(8 - width + other))

                if depth > tail:
                    with T.grid(depth - tail, kh) as (step, u):
                        for v in range(columns):
                            one(step, u, v)
                for k, (step, u, v) in enumerate(product(range(depth - tail, depth), range(kh), range(columns))):
                    one(step, u, v)
                    between(k - finishing)

            def finish(image: Expr, nth: Expr, stack: Expr, n: Expr, sums: Any) -> None:
                """The nth output of a stack."""
                r, row, column = cover.output(stack, n)
                block, lane = T.bind(nth * unit // BLOCK), T.bind(nth * unit % BLOCK)
                values = [load(sums, r, at) + load(bias_, nth * unit + at) for at in range(0, unit, LANES)]
                if residual is not None:
                    halo = spec.inputs[1].halo
                    where = (image, block, row + halo.top, column + halo.left)
                    added = [load(residual, *where, lane + at) for at in range(0, unit, LANES)]
                    values = [value + more for value, more in zip(values, added, strict=True)]
                where = (image, block, row + y.halo.top, column + y.halo.left)
                if len(values) == 1:
                    store(Y, activate(values[0], activation, rough=True), *where, lane)
                    return
                early = "none" if activation == "relu" else activation
                low, high = (activate(value, early, rough=True) for value in values)
                narrow = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"  # the second operand lands below
                bits = T.reinterpret("int16x32", T.call_llvm_pure_intrin("bfloat16x32", narrow, high, low))
                if activation == "relu":
                    bits = T.max(bits, T.broadcast(T.int16(0), BLOCK))  # negative floats are negative as integers
                T.buffer_store(Y, T.reinterpret("uint16x32", bits), [*where, T.ramp(0, 1, BLOCK)])

            source = copied() if cover.mode == "dense" else X
            with T.parallel(0, X.shape[0] * groups * chunks) as task:
                sums = scratch((outputs, unit), "float32")
                image = T.bind(task // (groups * chunks))
                group = T.bind(task // chunks % groups)
                first = T.bind(task % chunks * each)
                count = T.bind(T.max(T.min(each, stacks - first), 0) * channels)
                amx("ldtilecfg", T.address_of(configuration[0]))

                def place(nth: Expr) -> tuple[Expr, Expr]:
                    return T.bind(group * channels + nth % channels), T.bind(first + nth // channels)

                with T.serial(0, count) as nth:
                    earlier = place(nth - 1)

                    def between(k: int) -> None:
                        if k >= 0:
                            with when(nth > 0):
                                for n in range(k * rows, min(k * rows + rows, outputs)):
                                    finish(image, *earlier, n, sums)

                    products(source, image, *place(nth), between)
                    for register in range(4):
                        corner = T.address_of(sums[register // width * TILE, register % width * TILE])
                        amx("tilestored64", T.uint8(register), corner, T.int64(unit * 4))
                with when(count > 0), T.serial(0, outputs) as n:
                    finish(image, *place(count - 1), n, sums)
                amx("tilerelease")

        configuration = tile_configuration()
        function = primitive([*spec.inputs, weight, bias, configuration, *spec.outputs], body)
        reads = kh * columns if cover.mode == "dense" else sh * sw  # inputs of an output, of all lanes of a block
        taken = each * outputs * reads * x.block * depth * 2
        block_size = taken + channels * weight[0].nbytes + each * outputs * unit * channels * 2
        return Kernel(function, (weight, bias, configuration), block_size, groups * chunks * 4)


def _modes(spec: LayerSpec) -> list[str]:
    """Modes worth a try, the least products first."""
    *_, kh, kw, sh, sw, _, _ = geometry(spec)
    if folds(spec):
        return ["row"]
    covers = {mode: Cover(spec, mode) for mode in ("flat", "row", "dense", "tall")}
    whole = ["flat", "row"] if sh == sw <= FLAT_STRIDE and covers["flat"].serves() else ["row"]
    least = min(covers[mode].stacks for mode in whole)
    found = [mode for mode in whole if covers[mode].stacks <= 1.5 * least]
    dense = covers["dense"]
    if sh * sw > 1 and (kh * kw == 1 or dense.stacks <= min(COPIED_STACKS, least - 1)):
        found.insert(0, "dense")
    found.sort(key=lambda mode: covers[mode].stacks)
    tall = covers["tall"]
    if kh * kw > 1 == tall.stacks < least and tall.serves() and tall.copied_bytes(spec) <= COPIED_BYTES:
        found.append("tall")
    return found


def _pack(spec: LayerSpec, weight: NDArray[np.float32], width: int) -> NDArray[np.uint16]:
    """(OC/unit, IC/32, KH, KW, width, 16, 16, 2): for each step `width` tiles of 16 channel pairs x 16 output channels.

    Folded: (OC/unit, 1, KH, ceil(KW * IC / 32), width, 16, 16, 2), KW with the gaps of its dilation.
    """
    weight = pad_to(weight, 0, BLOCK)
    oc, ic, kh, kw = weight.shape
    if folds(spec):
        spread = np.zeros((oc, ic, kh, (kw - 1) * spec.attributes["dilations"][1] + 1), np.float32)
        spread[..., :: spec.attributes["dilations"][1]] = weight  # what lies between two taps counts for nothing
        weight, kw = spread, spread.shape[3]
        rows = pad_to(weight.transpose(0, 2, 3, 1).reshape(oc, kh, kw * ic), 2, DEPTH)
        steps = rows.reshape(oc // (width * TILE), width, TILE, 1, kh, -1, DEPTH // 2, 2)
        return to_bf16_bits(np.ascontiguousarray(steps.transpose(0, 3, 4, 5, 1, 6, 2, 7)))
    padded = pad_to(weight, 1, DEPTH)
    steps = padded.reshape(oc // (width * TILE), width, TILE, -1, DEPTH // 2, 2, kh, kw)
    return to_bf16_bits(np.ascontiguousarray(steps.transpose(0, 3, 6, 7, 1, 4, 2, 5)))

"""Convolution in bfloat16 on AMX tiles.

Four accumulator tiles make 32 outputs x 32 output channels; each step of 32 products loads two tiles of inputs and two
of weights. An input tile is 16 outputs' worth of 32 channels, and since a tile is loaded with a stride, it can be

    "flat"  16 places of the haloed plane taken as one long row, a stride apart: what falls behind a row's last output
            is computed and thrown away, which costs (W + halo) / W at stride 1 instead of 16 / (W mod 16)
    "row"   16 neighbours of one output row

A convolution over few channels (an image) folds its columns into the channels: with the channels innermost, the
`KW x IC` inputs of a kernel row lie side by side, and are one tile row.

Sums leave the tiles through memory. Their epilogue is done by vectors between the products of the next block of
outputs, a few rows a step, so that it costs next to nothing where there are products enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.ir import Kernel, LayerSpec, Point
from veltair.compiler.kernels.convolution import first_tap, geometry, prefetch, reach
from veltair.compiler.kernels.emit import (
    LANES,
    Expr,
    activate,
    amx,
    load,
    pad_to,
    primitive,
    scratch,
    tile_configuration,
    to_bf16_bits,
    when,
)

TILE = 16  # rows of a tile: outputs
PAIR = 2 * TILE  # outputs of a register block
DEPTH = 32  # bfloat16 values in a tile row: products of one step
FLAT_STRIDE = (
    2  # greatest stride of "flat" mode: what is thrown away grows with it, and so does what is read past the end
)
FEW_PAIRS = 8  # up to which reading the weights takes long beside their use
BLOCK = 32  # output channels of a register block: two tiles
LATE_STEPS = 16  # last ones of a long reduction, in which sums are finished: their lines are still in L1 when the next
# sums are stored there, and stores that miss it wait for one another (a sixth of the time of 72 steps)


class Conv2dAmx:
    """inputs: x (N, IC/b, H, W, b)[, residual as the output], bfloat16; weights: weight (OC, IC, KH, KW), bias (OC)."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        _, ow, _, _, sh, sw, _, _ = geometry(spec)
        blocks = -(-spec.outputs[0].shape[1] // BLOCK)
        between = spec.inputs[0].physical[3] - ow  # a pair of tiles in "flat" mode must find an output
        modes = ["flat", "row"] if sh == sw <= FLAT_STRIDE and not _folds(spec) and between < PAIR else ["row"]
        found: list[Point] = []
        for mode in sorted(modes, key=lambda mode: _pairs(spec, mode)):
            if _pairs(spec, mode) > 1.5 * min(_pairs(spec, m) for m in modes):
                continue
            for channels in (c for c in (1, 2, 4) if blocks % c == 0):
                for chunks in sorted({min(_pairs(spec, mode), c) for c in (1, 2, 4, 8, 28)}):
                    if blocks // channels * chunks <= 512:
                        for ahead in (1, 0) if _pairs(spec, mode) <= FEW_PAIRS else (0,):
                            found.append({"mode": mode, "channels": channels, "chunks": chunks, "ahead": ahead})
        # Enough tasks for the cores at hand, the weights of a task small: a good first guess.
        return sorted(found, key=lambda p: (p["mode"] != found[0]["mode"], abs(int(p["chunks"]) - 2), p["channels"]))

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        pitch = x.physical[3]  # columns of a haloed input row
        oh, ow, kh, _, sh, sw, dh, dw = geometry(spec)
        mode, channels, chunks = str(point["mode"]), int(point["channels"]), int(point["chunks"])
        top, left = first_tap(spec)
        folds = _folds(spec)
        pairs = _pairs(spec, mode)
        each = -(-pairs // chunks)
        wide, _, first_block = reach(spec, BLOCK)
        weight = _pack(spec, wide)  # (OC/32, steps…, 2, 16, 16, 2)
        blocks, depth, _, columns = weight.shape[:4]
        groups = blocks // channels
        bias = pad_to(spec.weights["bias"], 0, BLOCK)
        activation = str(spec.attributes["activation"])
        stride_bytes = sw * x.block * 2
        windows = -(-ow // TILE)  # of an output row, in "row" mode
        steps = depth * kh * columns
        # Of the weights of the next task, fetched at one step of one pair: they come while these are in use.
        lines = -(-PAIR // pairs) if point["ahead"] else 0
        # A power of two of outputs is finished at each of the last steps, so that it comes out even.
        rows = next(n for n in (1, 2, 4, 8, 16, 32) if n * (LATE_STEPS if steps > 3 * LATE_STEPS else steps) >= PAIR)
        finishing = steps - PAIR // rows
        plain = _is_plain(spec, mode)

        def body(X: Any, *rest: Any) -> None:
            residual = rest[0] if len(spec.inputs) > 1 else None
            W, bias_, configuration, Y = rest[-4:]

            def start(pair: Expr) -> Expr:
                """Place of a pair's first output; the last pair of a plain image moves up and makes some again."""
                return T.min(pair * PAIR, oh * ow - PAIR) if plain else pair * PAIR

            def address(image: Expr, step: Expr, u: Expr, v: int, pair: Expr, half: int) -> Expr:
                """First input of tile `half` of a pair at one step of the reduction; runs on over row ends."""
                if mode == "flat":
                    place = (start(pair) + half * TILE) * sw + v * dw + left
                    return T.address_of(X[image, step, u * dh + top, place, 0])
                window = T.min(pair * 2 + half, oh * windows - 1)  # an odd last pair repeats its first tile
                row, column = window // windows * sh + u * dh + top, window % windows * TILE * sw + left
                if folds:
                    return T.address_of(X[image, 0, row, column, v * DEPTH])
                return T.address_of(X[image, step, row, column + v * dw, 0])

            def products(image: Expr, block: Expr, pair: Expr, between: Any) -> None:
                """Sums of 32 outputs x 32 channels in the accumulators; `between(k)` makes code for behind step k."""
                for register in range(4):
                    amx("tilezero", T.uint8(register))
                with T.grid(depth, kh) as (step, u):
                    for v in range(columns):
                        k = T.bind((step * kh + u) * columns + v)
                        for line in range(lines):
                            at = ((pair * steps + k) * lines + line) * DEPTH
                            prefetch(W[block + channels, 0, 0, 0, 0, 0, 0, at])
                        for half in range(2):
                            first = address(image, first_block(block) + step, u, v, pair, half)
                            amx("tileloadd64", T.uint8(4 + half), first, T.int64(stride_bytes))
                        for half in range(2):
                            first = T.address_of(W[block, step, u, v, half, 0, 0, 0])
                            amx("tileloadd64", T.uint8(6 + half), first, T.int64(64))
                        for register in range(4):
                            a, b = 4 + register // 2, 6 + register % 2
                            amx("tdpbf16ps", T.uint8(register), T.uint8(a), T.uint8(b))
                        between(k)

            def output(pair: Expr, n: Expr) -> tuple[Expr, Expr, Expr]:
                """Row of a pair's sums, and output row and column, of its nth output.

                Rows of tiles that are none, behind a row's end, give its last output again, or the next row's first:
                that costs less than a branch.
                """
                if plain:
                    return n, 0, T.bind(T.min(pair * PAIR, oh * ow - PAIR) + n)
                if mode == "row":
                    window = T.bind(T.min(pair * 2 + n // TILE, oh * windows - 1))
                    first = T.bind(window % windows * TILE)
                    column = T.bind(T.min(first + n % TILE, ow - 1))
                    return n // TILE * TILE + column - first, window // windows, column
                begin, at = T.bind(pair * PAIR), T.bind(pair * PAIR + n)
                behind = T.bind(begin % pitch)
                first = T.bind(begin + T.Select(behind < ow, 0, pitch - behind))
                place = T.min(at - T.max(at % pitch - (ow - 1), 0), (oh - 1) * pitch + ow - 1)
                place = T.bind(T.max(place, first))
                return place - begin, T.bind(place // pitch), T.bind(place % pitch)

            def finish(image: Expr, block: Expr, pair: Expr, n: Expr, sums: Any) -> None:
                """The nth output of a pair."""
                r, row, column = output(pair, n)
                values = [load(sums, r, lane) + load(bias_, block * BLOCK + lane) for lane in (0, LANES)]
                if residual is not None:
                    halo = spec.inputs[1].halo
                    where = (image, block, row + halo.top, column + halo.left)
                    added = [load(residual, *where, lane) for lane in (0, LANES)]
                    values = [value + more for value, more in zip(values, added, strict=True)]
                low, high = (activate(value, "none" if activation == "relu" else activation) for value in values)
                narrow = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"  # the second operand lands below
                bits = T.reinterpret("int16x32", T.call_llvm_pure_intrin("bfloat16x32", narrow, high, low))
                if activation == "relu":
                    bits = T.max(bits, T.broadcast(T.int16(0), BLOCK))  # negative floats are negative as integers
                T.buffer_store(
                    Y,
                    T.reinterpret("uint16x32", bits),
                    [image, block, row + y.halo.top, column + y.halo.left, T.ramp(0, 1, BLOCK)],
                )

            with T.parallel(0, X.shape[0] * groups * chunks) as task:
                sums = scratch((PAIR, BLOCK), "float32")
                image = T.bind(task // (groups * chunks))
                group = T.bind(task // chunks % groups)
                first = T.bind(task % chunks * each)
                count = T.bind(T.max(T.min(each, pairs - first), 0) * channels)
                amx("ldtilecfg", T.address_of(configuration[0]))

                def place(nth: Expr) -> tuple[Expr, Expr]:
                    return T.bind(group * channels + nth % channels), T.bind(first + nth // channels)

                with T.serial(0, count) as nth:
                    earlier = place(nth - 1)

                    def between(k: Expr) -> None:
                        with when(T.And(nth > 0, k >= finishing)):
                            for r in range(rows):
                                finish(image, *earlier, (k - finishing) * rows + r, sums)

                    products(image, *place(nth), between)
                    for register in range(4):
                        corner = T.address_of(sums[register // 2 * TILE, register % 2 * TILE])
                        amx("tilestored64", T.uint8(register), corner, T.int64(BLOCK * 4))
                with when(count > 0), T.serial(0, PAIR) as n:
                    finish(image, *place(count - 1), n, sums)
                amx("tilerelease")

        configuration = tile_configuration()
        function = primitive([*spec.inputs, weight, bias, configuration, *spec.outputs], body)
        taken = each * PAIR * sh * sw * x.block * depth * 2
        block_size = taken + channels * weight[0].nbytes + each * PAIR * BLOCK * channels * 2
        return Kernel(function, (weight, bias, configuration), block_size, groups * chunks * 4)


def _folds(spec: LayerSpec) -> bool:
    """The input keeps all of its few channels innermost, so kernel columns fold into the reduction."""
    return spec.inputs[0].block < DEPTH


def _is_plain(spec: LayerSpec, mode: str) -> bool:
    """The outputs and what they are made of are long rows without gaps."""
    oh, ow, _, _, sh, _, _, _ = geometry(spec)
    tensors = (*spec.inputs, *spec.outputs)
    return mode == "flat" and sh == 1 and oh * ow >= PAIR and all(t.physical[2:4] == (oh, ow) for t in tensors)


def _pairs(spec: LayerSpec, mode: str) -> int:
    """Pairs of tiles that cover the outputs of one image."""
    oh, ow = spec.outputs[0].shape[2:]
    if mode == "flat":
        return -(-((oh - 1) * spec.inputs[0].physical[3] + ow) // (2 * TILE))
    return -(-oh * -(-ow // TILE) // 2)


def _pack(spec: LayerSpec, weight: NDArray[np.float32]) -> NDArray[np.uint16]:
    """(OC/32, IC/32, KH, KW, 2, 16, 16, 2): for each step two tiles of 16 channel pairs x 16 output channels.

    Folded: (OC/32, 1, KH, ceil(KW * IC / 32), 2, 16, 16, 2), KW with the gaps of its dilation.
    """
    weight = pad_to(weight, 0, BLOCK)
    oc, ic, kh, kw = weight.shape
    if _folds(spec):
        spread = np.zeros((oc, ic, kh, (kw - 1) * spec.attributes["dilations"][1] + 1), np.float32)
        spread[..., :: spec.attributes["dilations"][1]] = weight  # what lies between two taps counts for nothing
        weight, kw = spread, spread.shape[3]
        rows = pad_to(weight.transpose(0, 2, 3, 1).reshape(oc, kh, kw * ic), 2, DEPTH)
        steps = rows.reshape(oc // BLOCK, 2, TILE, 1, kh, -1, DEPTH // 2, 2)
        return to_bf16_bits(np.ascontiguousarray(steps.transpose(0, 3, 4, 5, 1, 6, 2, 7)))
    padded = pad_to(weight, 1, DEPTH)
    steps = padded.reshape(oc // BLOCK, 2, TILE, -1, DEPTH // 2, 2, kh, kw)
    return to_bf16_bits(np.ascontiguousarray(steps.transpose(0, 3, 6, 7, 1, 4, 2, 5)))

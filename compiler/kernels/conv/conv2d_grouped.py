"""Convolution in groups in fp32 on vectors: each vector of outputs reads the input channels of its own groups alone.

A register tile holds up to `pixels` outputs x `channels` vectors. Groups need not fill vectors: where a vector lies in
two groups it reads both, between zeros. Before a channel shuffle each group has vectors of its own; the sums of all
groups for the outputs of a tile wait in a scratch, and are shuffled as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.codegen.activation import apply_activation
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import allocate_scratch, vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.transpose import interleave_channels
from veltair.compiler.kernels.codegen.vectors import LANES, Expr
from veltair.compiler.kernels.conv.conv2d_direct import (
    UNROLL,
    heights,
    likely,
    place,
    register_tile,
    registers_each,
    rows_together,
    strip_cycles,
    tiles_of_rows,
)
from veltair.compiler.kernels.conv.conv_geometry import first_tap, geometry, where_present


@dataclass(frozen=True, slots=True)
class Panels:
    """Vectors of outputs that are made together, and the input channels that they read.

    Panel n makes output channels n * width … in order; shuffled, panel v * groups + g makes the outputs from v * width
    on of group g.
    """

    groups: int
    outs: int  # of a group
    ins: int
    width: int  # output channels of a panel
    shuffled: bool

    @property
    def count(self) -> int:
        each = self.outs if self.shuffled else self.groups * self.outs
        return -(-each // self.width) * (self.groups if self.shuffled else 1)

    def outputs(self, n: int) -> list[int]:
        """Output channels of a panel, in the order of the weights."""
        if self.shuffled:
            first, end = n // self.groups * self.width, self.outs
            return [n % self.groups * self.outs + i for i in range(first, min(first + self.width, end))]
        return list(range(n * self.width, min((n + 1) * self.width, self.groups * self.outs)))

    def first(self, n: Any) -> Any:
        """First input channel of a panel, of a number or an expression."""
        return (n % self.groups if self.shuffled else n * self.width // self.outs) * self.ins

    def end(self, n: Any, least: Any) -> Any:
        """Behind its last one; `least` is the minimum of two."""
        if self.shuffled:
            return self.first(n) + self.ins
        return (least((n + 1) * self.width, self.groups * self.outs) - 1) // self.outs * self.ins + self.ins

    def taken(self, n: int) -> int:
        return int(self.end(n, min) - self.first(n))

    def packed(self, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(panels, KH, KW, input channels of the longest run, width) and (panels, width)."""
        most = max(map(self.taken, range(self.count)))
        found = np.zeros((self.count, *weight.shape[2:], most, self.width), np.float32)
        biases = np.zeros((self.count, self.width), np.float32)
        for n in range(self.count):
            for lane, channel in enumerate(self.outputs(n)):
                start = channel // self.outs * self.ins - self.first(n)
                found[n, :, :, start : start + self.ins, lane] = weight[channel].transpose(1, 2, 0)
                biases[n, lane] = bias[channel]
        return found, biases


def points(spec: LayerSpec, features: frozenset[str]) -> list[Point]:
    oh, ow, *_ = geometry(spec)
    each = registers_each(features)
    found: list[tuple[float, Point]] = []
    for channels in (c for c in (1, 2, 3, 4) if register_tile(c, features) and (c == 1 or c <= _vectors(spec))):
        panels = _panels(spec, channels)
        steps = sum(map(panels.taken, range(panels.count)))
        most = register_tile(channels, features)
        for pixels in sorted({most, -(-most * 2 // 3)}):
            join = rows_together(oh, ow, pixels, channels, each)
            cost = steps * strip_cycles(join * ow, pixels, channels, each) / (join * ow)
            for rows, liking in heights(oh, join, 1):
                point: Point = {"algorithm": "grouped", "channels": channels, "pixels": pixels, "rows": rows}
                found.append((cost * (1 + liking), point))
    return likely(found)


def build(spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
    x, y = spec.inputs[0], spec.outputs[0]
    channels, pixels, rows = int(point["channels"]), int(point["pixels"]), int(point["rows"])
    oh, ow, kh, kw, sh, sw, dh, dw = geometry(spec)
    panels = _panels(spec, channels)
    groups, width = panels.groups, panels.width
    blocks, chunks = -(-y.shape[1] // LANES), -(-oh // rows)
    tasks = panels.count // groups if panels.shuffled else panels.count  # of one chunk
    weight, bias = panels.packed(spec.weights["weight"], spec.weights["bias"])
    join = rows_together(oh, ow, pixels, channels, registers_each(features))
    top, left = first_tap(spec)
    activation = spec.parameters_as(Conv2dParameters).activation
    unroll = gcd(panels.ins, x.block, UNROLL)  # input channels of a turn: all in one block

    def body(X: Any, *rest: Any) -> None:
        residual = rest[0] if len(spec.inputs) > 1 else None
        W, bias_, Y = rest[-3:]

        def add(acc: Any, image: Expr, panel: Expr, places: list[tuple[Expr, Expr]]) -> None:
            """Sums of the outputs at `places`."""
            for c in range(channels):
                start = T.bind(vector_load(bias_, panel, c * LANES))
                for p in range(len(places)):
                    T.buffer_store(acc, start, [p * channels + c])
            first = T.bind(panels.first(panel))
            turns = T.bind((panels.end(panel, T.min) - first) // unroll)
            with T.grid(kh, kw) as (u, v), T.serial(0, turns) as turn:
                channel = T.bind(first + turn * unroll)
                block, lane = T.bind(channel // x.block), T.bind(channel % x.block)
                for k in range(unroll):
                    taps = [T.bind(vector_load(W, panel, u, v, turn * unroll + k, c * LANES)) for c in range(channels)]
                    for p, (row, column) in enumerate(places):
                        where = (row * sh + u * dh + top, column * sw + v * dw + left)
                        value = T.bind(T.broadcast(X[image, block, *where, lane + k], LANES))
                        for c in range(channels):
                            at = p * channels + c
                            T.buffer_store(acc, acc[at] + value * taps[c], [at])

        def finish(image: Expr, block: Expr, row: Expr, column: Expr, value: Expr) -> None:
            if residual is not None:
                halo = spec.inputs[1].halo
                value = value + vector_load(residual, image, block, row + halo.top, column + halo.left, 0)
            vector_store(
                Y, apply_activation(value, activation), image, block, row + y.halo.top, column + y.halo.left, 0
            )

        with T.parallel(0, X.shape[0] * tasks * chunks) as task:
            acc = T.alloc_buffer((pixels * channels,), "float32x16", scope="local")
            sums = allocate_scratch((groups, pixels, width), "float32") if panels.shuffled else None
            image = T.bind(task // (tasks * chunks))
            nth, first = T.bind(task // chunks % tasks), T.bind(task % chunks * rows)

            def tile(row: Expr, cell: Expr, count: int, height: int, _: Expr) -> None:
                places = [place(row, cell + p, ow, height) for p in range(count)]
                if sums is None:
                    add(acc, image, nth, places)
                    for p, where in enumerate(places):
                        for c in range(channels):
                            with where_present(blocks, channels, nth, c):
                                finish(image, nth * channels + c, *where, acc[p * channels + c])
                    return
                with T.serial(0, groups) as g:
                    add(acc, image, nth * groups + g, places)
                    for p in range(count):
                        for c in range(channels):
                            vector_store(sums, acc[p * channels + c], g, p, c * LANES)
                with T.serial(0, count) as p:
                    where = place(row, T.bind(cell + p), ow, height)
                    for c in range(channels):
                        parts = interleave_channels([T.bind(vector_load(sums, g, p, c * LANES)) for g in range(groups)])
                        for i, value in enumerate(parts):
                            block = T.bind((nth * channels + c) * groups + i)
                            with when(block < blocks):
                                finish(image, block, *where, value)

            tiles_of_rows(first, rows, (oh, ow), join, pixels, tile)

    function = build_prim_func([*spec.inputs, weight, bias, *spec.outputs], body)
    made = width * groups if panels.shuffled else width
    inputs = x.shape[1] if panels.shuffled else weight.shape[3]
    block_size = (rows * sh + kh - 1) * ow * sw * inputs * 4 + weight[0].nbytes * made // width + rows * ow * made * 4
    return Kernel(function, (weight, bias), block_size, tasks * chunks * pixels * channels)


def _panels(spec: LayerSpec, channels: int) -> Panels:
    oc, ins = spec.weights["weight"].shape[:2]
    conv = spec.parameters_as(Conv2dParameters)
    return Panels(conv.groups, oc // conv.groups, ins, channels * LANES, conv.shuffled)


def _vectors(spec: LayerSpec) -> int:
    """Of outputs that may be made together: of a group, if they are to be shuffled."""
    conv = spec.parameters_as(Conv2dParameters)
    outs = spec.outputs[0].shape[1] // (conv.groups if conv.shuffled else 1)
    return -(-outs // LANES)

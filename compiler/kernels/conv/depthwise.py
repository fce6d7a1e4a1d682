"""Depthwise convolution: each channel by itself, fp32 or bfloat16 in memory, fp32 in registers.

A register tile holds `pixels` neighbouring outputs of a row, or of `tall` rows, which share inputs: that pays where an
input is widened before it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.codegen.activation import apply_activation
from veltair.compiler.kernels.codegen.memory import vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr
from veltair.compiler.kernels.codegen.weight_packing import pad_axis
from veltair.compiler.kernels.conv.conv_geometry import first_tap, geometry

UNROLLED = 3  # kernel rows: the taps of more would not stay in registers all at once


class DepthwiseConv2d:
    """inputs: x (N, C/b, H, W, b)[, residual]; weights: weight (C, 1, KH, KW), bias (C). fp32 or bfloat16 in memory."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        oh, ow = spec.outputs[0].shape[2:]
        heights = sorted({min(oh, r) for r in (7, 1, 28, 112)}, key=lambda r: abs(r - 7))
        if "avx512" not in features:
            return [{"pixels": p, "rows": r} for p in dict.fromkeys(min(ow, p) for p in (4, 5, 3)) for r in heights]
        conv = spec.parameters_as(Conv2dParameters)
        kernel = conv.kernel[0]
        liked = 8 if kernel <= UNROLLED else 14
        widths = sorted({min(ow, p) for p in (4, 7, 8, 14)}, key=lambda p: (ow % p > 0, abs(p - liked)))
        found: list[Point] = [{"pixels": p, "rows": r} for p in widths for r in heights]
        if spec.inputs[0].dtype == "uint16" and kernel <= UNROLLED and oh > 1:
            taller: list[Point] = [{"pixels": min(ow, 7), "tall": 2, "rows": r} for r in heights if r > 1]
            # An exponential at the end costs more than what is saved.
            found = [*found, *taller] if "gated" in conv.activation else [*taller, *found]
        return found

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        pixels, rows, tall = int(point["pixels"]), int(point["rows"]), int(point.get("tall", 1))
        oh, ow, kh, kw, sh, sw, dh, dw = geometry(spec)
        top, left = first_tap(spec)
        out = y.halo
        vectors = x.block // LANES
        blocks = -(-x.shape[1] // x.block)
        chunks = -(-oh // rows)
        uneven = rows % tall or oh % rows % tall  # some task ends with rows that fill no tile
        activation = spec.parameters_as(Conv2dParameters).activation
        weight = pad_axis(spec.weights["weight"][:, 0], 0, x.block).reshape(blocks, x.block, kh, kw)
        packed = np.ascontiguousarray(weight.transpose(0, 2, 3, 1))  # (C/b, KH, KW, b)
        bias = pad_axis(spec.weights["bias"], 0, x.block)

        def body(X: Any, *rest: Any) -> None:
            residual = rest[0] if len(spec.inputs) > 1 else None
            W, bias_, Y = rest[-3:]

            def tile(
                acc: Any, image: Expr, block: Expr, row: Expr, column: Expr, half: int, height: int, count: int
            ) -> None:
                """`height` x `count` outputs."""
                lane = half * LANES
                sums = [T.bind(vector_load(bias_, block * x.block + lane))] * (height * count)

                def add(below: Expr, turns: list[tuple[int, Expr]]) -> None:
                    """An input row to output row r by kernel row u, for each (r, u) of `turns`; inputs load once."""
                    values: dict[int, Expr] = {}
                    for r, u in turns:
                        for v in range(kw):
                            tap = T.bind(vector_load(W, block, u, v, lane))
                            for p in range(count):
                                at = p * sw + v * dw
                                if at not in values:
                                    where = (row * sh + below + top, column * sw + at + left)
                                    values[at] = T.bind(vector_load(X, image, block, *where, lane))
                                i = r * count + p
                                sums[i] = T.bind(sums[i] + values[at] * tap)

                def keep() -> None:
                    """Carry the sums over a turn of the loop."""
                    for i, value in enumerate(sums):
                        T.buffer_store(acc, value, [i])
                        sums[i] = acc[i]

                if height == 1 and kh > UNROLLED:
                    keep()
                    with T.serial(0, kh) as u:
                        add(u * dh, [(0, u)])
                        keep()
                else:
                    for i in range((height - 1) * sh + (kh - 1) * dh + 1):
                        add(i, [(r, u) for r in range(height) for u in range(kh) if r * sh + u * dh == i])
                for r in range(height):
                    for p in range(count):
                        result = sums[r * count + p]
                        if residual is not None:
                            halo = spec.inputs[1].halo
                            at = (row + r + halo.top, column + p + halo.left)
                            result = result + vector_load(residual, image, block, *at, lane)
                        where = (image, block, row + r + out.top, column + p + out.left, lane)
                        vector_store(Y, apply_activation(result, activation), *where)

            def line(acc: Any, image: Expr, block: Expr, row: Expr, height: int) -> None:
                """All columns of `height` output rows."""
                for half in range(vectors):
                    with T.serial(0, ow // pixels) as t:
                        tile(acc, image, block, row, t * pixels, half, height, pixels)
                    if ow % pixels:
                        tile(acc, image, block, row, ow // pixels * pixels, half, height, ow % pixels)

            with T.parallel(0, X.shape[0] * blocks * chunks) as task:
                acc = T.alloc_buffer((pixels,), "float32x16", scope="local") if kh > UNROLLED else None
                image = T.bind(task // (blocks * chunks))
                block = T.bind(task // chunks % blocks)
                first = T.bind(task % chunks * rows)
                present = T.bind(T.min(rows, oh - first))
                with T.serial(0, present // tall) as r:
                    line(acc, image, block, first + r * tall, tall)
                if uneven:
                    with T.serial(0, present % tall) as r:
                        line(acc, image, block, first + present // tall * tall + r, 1)

        function = build_prim_func([*spec.inputs, packed, bias, *spec.outputs], body)
        item = np.dtype(x.dtype).itemsize
        block_size = ((rows * sh + kh - 1) * ow * sw + rows * ow) * x.block * item + packed[0].nbytes
        return Kernel(function, (packed, bias), block_size, blocks * chunks * pixels * tall)

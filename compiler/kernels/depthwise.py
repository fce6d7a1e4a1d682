"""Depthwise convolution: each channel by itself, fp32 or bfloat16 in memory, fp32 in registers.

A register tile holds `pixels` neighbouring outputs of a row; LLVM keeps the inputs that its taps share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.ir import Kernel, LayerSpec, Point
from veltair.compiler.kernels.convolution import first_tap, geometry
from veltair.compiler.kernels.emit import LANES, Expr, activate, load, pad_to, primitive, store


class DepthwiseConv2d:
    """inputs: x (N, C/b, H, W, b)[, residual]; weights: weight (C, 1, KH, KW), bias (C). fp32 or bfloat16 in memory."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        oh, ow = spec.outputs[0].shape[2:]
        widths = sorted({min(ow, p) for p in (4, 7, 8, 14)}, key=lambda p: (ow % p > 0, abs(p - 8)))
        heights = sorted({min(oh, r) for r in (7, 1, 28, 112)}, key=lambda r: abs(r - 7))
        return [{"pixels": p, "rows": r} for p in widths for r in heights]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        pixels, rows = int(point["pixels"]), int(point["rows"])
        oh, ow, kh, kw, sh, sw, dh, dw = geometry(spec)
        top, left = first_tap(spec)
        out = y.halo
        vectors = x.block // LANES
        blocks = -(-x.shape[1] // x.block)
        chunks = -(-oh // rows)
        activation = str(spec.attributes["activation"])
        weight = pad_to(spec.weights["weight"][:, 0], 0, x.block).reshape(blocks, x.block, kh, kw)
        packed = np.ascontiguousarray(weight.transpose(0, 2, 3, 1))  # (C/b, KH, KW, b)
        bias = pad_to(spec.weights["bias"], 0, x.block)

        def body(X: Any, *rest: Any) -> None:
            residual = rest[0] if len(spec.inputs) > 1 else None
            W, bias_, Y = rest[-3:]

            def tile(image: Expr, block: Expr, row: Expr, column: Expr, half: int, count: int) -> None:
                lane = half * LANES
                start = T.bind(load(bias_, block * x.block + lane))
                sums = [start] * count
                for u in range(kh):
                    for v in range(kw):
                        tap = T.bind(load(W, block, u, v, lane))
                        for p in range(count):
                            at = (row * sh + u * dh + top, (column + p) * sw + v * dw + left)
                            sums[p] = T.bind(sums[p] + load(X, image, block, *at, lane) * tap)
                for p in range(count):
                    result = sums[p]
                    if residual is not None:
                        halo = spec.inputs[1].halo
                        result = result + load(residual, image, block, row + halo.top, column + p + halo.left, lane)
                    where = (image, block, row + out.top, column + p + out.left, lane)
                    store(Y, activate(result, activation), *where)

            with T.parallel(0, X.shape[0] * blocks * chunks) as task:
                image = T.bind(task // (blocks * chunks))
                block = T.bind(task // chunks % blocks)
                first = T.bind(task % chunks * rows)
                with T.serial(0, T.min(rows, oh - first)) as r:
                    for half in range(vectors):
                        with T.serial(0, ow // pixels) as t:
                            tile(image, block, first + r, t * pixels, half, pixels)
                        if ow % pixels:
                            tile(image, block, first + r, ow // pixels * pixels, half, ow % pixels)

        function = primitive([*spec.inputs, packed, bias, *spec.outputs], body)
        item = np.dtype(x.dtype).itemsize
        block_size = ((rows * sh + kh - 1) * ow * sw + rows * ow) * x.block * item + packed[0].nbytes
        return Kernel(function, (packed, bias), block_size, blocks * chunks * pixels)

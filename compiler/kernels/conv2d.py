"""Direct convolution in fp32 on vectors, for AVX2 and AVX-512.

A register tile holds `pixels` neighbouring outputs of a row x `channels` vectors of 16 output channels; each input
value is broadcast against the weight vectors. A task is one group of output channels over `rows` output rows, so few
rows and few channels mean much parallelism and a small working set of outputs, many mean reuse of the weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.ir import Halo, Kernel, LayerSpec, Point
from veltair.compiler.kernels.emit import (
    LANES,
    Expr,
    activate,
    lanes,
    load,
    pad_to,
    primitive,
    store,
)


def geometry(spec: LayerSpec) -> tuple[int, int, int, int, int, int, int, int]:
    """Output rows, columns, kernel rows, columns, stride and dilation (each vertical, horizontal)."""
    oh, ow = spec.outputs[0].shape[2:]
    return (oh, ow, *spec.attributes["kernel"], *spec.attributes["strides"], *spec.attributes["dilations"])


def first_tap(spec: LayerSpec) -> tuple[int, int]:
    """Where in the haloed input the first tap of output (0, 0) lies."""
    halo: Halo = spec.inputs[0].halo
    top, left = spec.attributes["pads"][:2]
    return halo.top - top, halo.left - left


def is_flat(spec: LayerSpec) -> bool:
    """A 1x1 stride-1 convolution between tensors without halo: rows may be joined into one."""
    plain = all(t.halo == Halo() for t in (*spec.inputs, *spec.outputs))
    return plain and spec.attributes["kernel"] == (1, 1) and spec.attributes["strides"] == (1, 1)


class Conv2d:
    """inputs: x (N, IC/b, H, W, b)[, residual as the output]; weights: weight (OC, IC, KH, KW), bias (OC)."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        oh, ow = _extent(spec)
        blocks = -(-spec.outputs[0].shape[1] // LANES)
        registers = 30 if "avx512" in features else 12
        per_vector = 1 if "avx512" in features else 2
        found: list[tuple[float, Point]] = []
        for channels in (1, 2, 4):
            if blocks % channels:
                continue
            for pixels in sorted({min(ow, p) for p in (4, 6, 7, 12, 13, 14, 28)}):
                if channels * (pixels + 1) * per_vector > registers:
                    continue
                cost = _cycles(pixels, channels) * (ow // pixels) + _cycles(ow % pixels, channels)
                for rows in sorted({min(oh, r) for r in (1, 4, 14, 56)}):
                    found.append((cost / (ow * channels) + 0.001 * abs(rows - 4), _point(channels, pixels, rows)))
        if not found:
            return [_point(1, min(ow, 4), 1)]
        best = min(cost for cost, _ in found)
        return [point for cost, point in sorted(found, key=lambda pair: pair[0]) if cost < 1.6 * best]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        channels, pixels, rows = int(point["channels"]), int(point["pixels"]), int(point["rows"])
        _, _, kh, kw, sh, sw, dh, dw = geometry(spec)
        oh, ow = _extent(spec)
        flat = is_flat(spec)
        inner = x.block
        blocks = -(-x.shape[1] // inner)
        groups = -(-y.shape[1] // LANES) // channels
        chunks = -(-oh // rows)
        top, left = first_tap(spec)
        out = y.halo
        activation = str(spec.attributes["activation"])

        weight = pad_to(pad_to(spec.weights["weight"], 0, LANES * channels), 1, inner)
        packed = weight.reshape(groups, channels * LANES, blocks, inner, kh, kw).transpose(0, 2, 4, 5, 3, 1)
        packed = np.ascontiguousarray(packed)  # (groups, IC/b, KH, KW, b, channels * 16)
        bias = pad_to(spec.weights["bias"], 0, LANES * channels)

        def body(X: Any, *rest: Any) -> None:
            residual = rest[0] if len(spec.inputs) > 1 else None
            W, bias_, Y = rest[-3:]
            n = X.shape[0]

            def tile(acc: Any, image: Expr, group: Expr, row: Expr, column: Expr, count: int) -> None:
                """`count` outputs from (row, column) on."""
                for c in range(channels):
                    start = T.bind(load(bias_, (group * channels + c) * LANES))
                    for p in range(count):
                        T.buffer_store(acc, start, [p * channels + c])
                with T.grid(blocks, kh, kw, inner) as (b, u, v, i):
                    taps = [T.bind(W[group, b, u, v, i, lanes(c * LANES)]) for c in range(channels)]
                    for p in range(count):
                        if flat:  # one long row, so the column runs on over the row's end
                            value = X[image, b, 0, column + p, i]
                        else:
                            value = X[image, b, row * sh + u * dh + top, (column + p) * sw + v * dw + left, i]
                        value = T.bind(T.broadcast(value, LANES))
                        for c in range(channels):
                            at = p * channels + c
                            T.buffer_store(acc, acc[at] + value * taps[c], [at])
                for p in range(count):
                    for c in range(channels):
                        index = (
                            (image, group * channels + c, 0, column + p, 0)
                            if flat
                            else (image, group * channels + c, row + out.top, column + p + out.left, 0)
                        )
                        result = acc[p * channels + c]
                        if residual is not None:
                            halo = spec.inputs[1].halo
                            shifted = index if flat else (
                                image, group * channels + c, row + halo.top, column + p + halo.left, 0
                            )  # fmt: skip
                            result = result + load(residual, *shifted)
                        store(Y, activate(result, activation), *index)

            with T.parallel(0, n * groups * chunks) as task:
                acc = T.alloc_buffer((pixels * channels,), "float32x16", scope="local")
                image = T.bind(task // (groups * chunks))
                group = T.bind(task // chunks % groups)
                first = T.bind(task % chunks * rows)
                with T.serial(0, T.min(rows, oh - first)) as r:
                    with T.serial(0, ow // pixels) as t:
                        tile(acc, image, group, first + r, t * pixels, pixels)
                    if ow % pixels:
                        tile(acc, image, group, first + r, ow // pixels * pixels, ow % pixels)

        function = primitive([*spec.inputs, packed, bias, *spec.outputs], body)
        taken = (rows * sh + kh - 1) * ow * sw * blocks * inner * 4  # input rows of a task
        block_size = taken + packed[0].nbytes + rows * ow * channels * LANES * 4
        return Kernel(function, (packed, bias), block_size, groups * chunks * pixels * channels)


def _extent(spec: LayerSpec) -> tuple[int, int]:
    oh, ow = spec.outputs[0].shape[2:]
    return (1, oh * ow) if is_flat(spec) else (oh, ow)


def _cycles(pixels: int, channels: int) -> float:
    """Of one step of a register tile: two products a cycle, two loads a cycle, each sum waits four for the last."""
    return max(pixels * channels / 2, (pixels + channels) / 2, 4.0) if pixels else 0.0


def _point(channels: int, pixels: int, rows: int) -> Point:
    return {"channels": channels, "pixels": pixels, "rows": rows}


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

"""Kernels on blocked activations that move or combine data: pooling, element-wise, layout.

They are bound by memory, so their one choice is how many rows a task takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.ir import Activation, Kernel, LayerSpec, Point
from veltair.compiler.kernels.emit import LANES, Expr, activate, load, pad_to, primitive, splat, store

LOWEST = -3.4028234663852886e38


def rows_of_a_task(height: int, rows: tuple[int, ...] = (4, 1, 16, 1024)) -> list[Point]:
    return [{"rows": r} for r in dict.fromkeys(min(height, r) for r in rows)]


def inside(tensor: Activation, image: Expr, block: Expr, row: Expr, column: Expr, lane: Expr) -> tuple[Expr, ...]:
    """The index of an element of a haloed plane."""
    return image, block, row + tensor.halo.top, column + tensor.halo.left, lane


def row_bytes(tensor: Activation) -> int:
    """Of one row of one channel block."""
    return tensor.shape[3] * tensor.block * np.dtype(tensor.dtype).itemsize


class Pool2d:
    """Maximum or average over windows; padding never counts as a value."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return rows_of_a_task(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        height, width = x.shape[2:]
        oh, ow = y.shape[2:]
        (kh, kw), (sh, sw) = spec.attributes["kernel"], spec.attributes["strides"]
        top, left = spec.attributes["pads"][:2]
        bottom, right = spec.attributes["pads"][2:]
        rows = int(point["rows"])
        chunks = -(-oh // rows)
        blocks = -(-x.shape[1] // x.block)
        maximum = spec.attributes["kind"] == "max"
        count_pad = bool(spec.attributes.get("count_include_pad", 0))

        def body(X: Any, Y: Any) -> None:
            with T.parallel(0, X.shape[0] * blocks * chunks) as task:
                total = T.alloc_buffer((1,), "float32x16", scope="local")
                image, block = T.bind(task // (blocks * chunks)), T.bind(task // chunks % blocks)
                first = T.bind(task % chunks * rows)
                with (
                    T.serial(0, T.min(rows, oh - first)) as r,
                    T.grid(ow, x.block // LANES) as (column, half),
                ):
                    row = first + r
                    up, low = T.bind(T.max(row * sh - top, 0)), T.bind(T.min(row * sh - top + kh, height))
                    near, far = (
                        T.bind(T.max(column * sw - left, 0)),
                        T.bind(T.min(column * sw - left + kw, width)),
                    )
                    T.buffer_store(total, splat(LOWEST if maximum else 0.0), [0])
                    with T.serial(0, low - up) as u, T.serial(0, far - near) as v:
                        value = load(X, *inside(x, image, block, up + u, near + v, half * LANES))
                        T.buffer_store(total, T.max(total[0], value) if maximum else total[0] + value, [0])
                    result = total[0]
                    if not maximum:
                        if count_pad:  # the window cut only where it leaves the padded image
                            taps = (T.min(row * sh + kh, height + top + bottom) - row * sh) * (
                                T.min(column * sw + kw, width + left + right) - column * sw
                            )
                        else:
                            taps = (low - up) * (far - near)
                        result = T.Div(result, T.broadcast(T.cast(T.max(taps, 1), "float32"), LANES))
                    store(Y, result, *inside(y, image, block, row, column, half * LANES))

        function = primitive([x, y], body)
        block_size = (rows * sh + kh) * row_bytes(x) + rows * row_bytes(y)
        return Kernel(function, (), block_size, blocks * chunks)


class GlobalAveragePool:
    """(N, C/b, H, W, b) to row-major (N, C, 1, 1)."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        channels, height, width = x.shape[1:]
        blocks = -(-channels // x.block)

        def body(X: Any, Y: Any) -> None:
            with T.parallel(0, X.shape[0] * blocks) as task:
                total = T.alloc_buffer((x.block,), "float32", scope="local")
                image, block = T.bind(task // blocks), T.bind(task % blocks)
                with T.serial(0, x.block // LANES) as half:
                    store(total, splat(0.0), half * LANES)
                    with T.grid(height, width) as (row, column):
                        value = load(X, *inside(x, image, block, row, column, half * LANES))
                        store(total, load(total, half * LANES) + value, half * LANES)
                with T.serial(0, T.min(x.block, channels - block * x.block)) as lane:
                    mean = T.Mul(total[lane], T.float32(1.0 / (height * width)))
                    T.buffer_store(Y, mean, [image, block * x.block + lane, 0, 0])

        return Kernel(primitive([x, y], body), (), height * row_bytes(x), blocks)


class Elementwise:
    """A chain on blocked tensors: first input, then attribute `steps`.

    A step is "add:i" or "mul:i" with input i, "affine" with the weights scale and shift (C), or an activation.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return rows_of_a_task(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        y = spec.outputs[0]
        rows = int(point["rows"])
        _, channels, height, width = y.shape
        chunks, blocks = -(-height // rows), -(-channels // y.block)
        weights = tuple(pad_to(spec.weights[k], 0, y.block) for k in ("scale", "shift") if k in spec.weights)

        def body(*buffers: Any) -> None:
            Y = buffers[-1]
            with T.parallel(0, Y.shape[0] * blocks * chunks) as task:
                image, block = T.bind(task // (blocks * chunks)), T.bind(task // chunks % blocks)
                first = T.bind(task % chunks * rows)
                with (
                    T.serial(0, T.min(rows, height - first)) as r,
                    T.grid(width, y.block // LANES) as (column, half),
                ):

                    def at(i: int) -> Expr:
                        where = inside(spec.inputs[i], image, block, first + r, column, half * LANES)
                        return load(buffers[i], *where)

                    value = at(0)
                    for step in spec.attributes["steps"]:
                        kind, _, argument = step.partition(":")
                        if kind == "add":
                            value = value + at(int(argument))
                        elif kind == "mul":
                            value = value * at(int(argument))
                        elif kind == "affine":
                            channel = block * y.block + half * LANES
                            value = value * load(buffers[-3], channel) + load(buffers[-2], channel)
                        else:
                            value = activate(value, step)
                    store(Y, value, *inside(y, image, block, first + r, column, half * LANES))

        function = primitive([*spec.inputs, *weights, y], body)
        block_size = rows * sum(row_bytes(t) for t in (*spec.inputs, y))
        return Kernel(function, weights, block_size, blocks * chunks)


class ToBlocked:
    """Row-major fp32 (N, C, H, W) to blocks; channels that fill up the last block are zero."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return rows_of_a_task(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        _, channels, height, width = x.shape
        rows = int(point["rows"])
        chunks, blocks = -(-height // rows), -(-channels // y.block)

        def body(X: Any, Y: Any) -> None:
            with T.parallel(0, X.shape[0] * blocks * chunks) as task:
                image, block = T.bind(task // (blocks * chunks)), T.bind(task // chunks % blocks)
                first = T.bind(task % chunks * rows)
                with T.serial(0, T.min(rows, height - first)) as r, T.grid(width, y.block) as (column, lane):
                    channel = block * y.block + lane
                    value = X[image, T.min(channel, channels - 1), first + r, column]
                    value = T.Select(channel < channels, value, T.float32(0)) if channels % y.block else value
                    where = list(inside(y, image, block, first + r, column, lane))
                    T.buffer_store(Y, _narrow(value) if y.dtype == "uint16" else value, where)

        block_size = 2 * rows * row_bytes(y)
        return Kernel(primitive([x, y], body), (), block_size, blocks * chunks)


class ToPlain:
    """Blocks to row-major fp32 (N, C, H, W)."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return rows_of_a_task(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        _, channels, height, width = x.shape
        rows = int(point["rows"])
        chunks = -(-height // rows)

        def body(X: Any, Y: Any) -> None:
            with T.parallel(0, X.shape[0] * channels * chunks) as task:
                image, channel = T.bind(task // (channels * chunks)), T.bind(task // chunks % channels)
                first = T.bind(task % chunks * rows)
                with T.serial(0, T.min(rows, height - first)) as r, T.serial(0, width) as column:
                    where = inside(x, image, channel // x.block, first + r, column, channel % x.block)
                    value = X[where]
                    if x.dtype == "uint16":
                        value = T.reinterpret("float32", T.shift_left(T.cast(value, "uint32"), T.uint32(16)))
                    T.buffer_store(Y, value, [image, channel, first + r, column])

        return Kernel(primitive([x, y], body), (), 2 * rows * row_bytes(x), channels * chunks)


class Copy:
    """A row-major tensor as it is."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        def body(X: Any, Y: Any) -> None:
            with T.grid(*X.shape) as index:
                where = list(index) if len(X.shape) > 1 else [index]
                T.buffer_store(Y, X[tuple(where)], where)

        return Kernel(primitive([*spec.inputs, *spec.outputs], body), (), 0, 1)


def _narrow(value: Expr) -> Expr:
    """One float's upper half, rounded to nearest even; finite and infinite values only."""
    bits = T.bind(T.reinterpret("uint32", value))
    odd = T.bitwise_and(T.shift_right(bits, T.uint32(16)), T.uint32(1))
    return T.cast(T.shift_right(bits + T.uint32(0x7FFF) + odd, T.uint32(16)), "uint16")

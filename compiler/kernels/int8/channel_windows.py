"""Windows of each channel by itself, on maps with channels last: depthwise convolutions, averages, maximum pools.

Vectors hold 16 channels of one output. Where a whole window lies inside the image, no tap is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import masked_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.row_lanes import flatten_to_rows
from veltair.compiler.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.quantised import (
    Addend,
    QuantisedPoolParameters,
    QuantisedProductParameters,
    Window,
)
from veltair.compiler.kernels.int8.epilogue import PADDING, QuantisedEpilogue, epilogue_weights

UNROLLED = 9  # taps, up to which a window without checks is straight-line code


class QuantisedDepthwise:
    """inputs: x (N, C, H, W) of 8 bits in one block[, scale, zero point][, residual]; weights: weight (taps, C) of int8
    or int16, and as of `QuantisedProduct`.

    >>> QuantisedDepthwise.__name__
    'QuantisedDepthwise'
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return _row_points(spec)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        parameters = spec.parameters_as(QuantisedProductParameters)
        window, y = parameters.window, spec.outputs[0]
        assert window is not None
        taps = pad_axis(spec.weights["weight"], 1, LANES).astype(np.int32)
        weights = [taps, *epilogue_weights(spec, LANES)]

        def body(*buffers: Any) -> None:
            count, numbers, width = len(spec.inputs), buffers[-2], y.shape[1]
            W, dynamic = buffers[count], parameters.dynamic
            residual = flatten_to_rows(buffers[count - 1], width) if parameters.addend is Addend.RESIDUAL else None
            output = flatten_to_rows(buffers[-1], width)
            rest, scale = buffers[count + 1 : -1], buffers[1] if dynamic else None
            epilogue = QuantisedEpilogue(output, residual, rest, scale, parameters, width)
            walk = _Walk(spec, window, buffers[0], int(point["rows"]))

            def begin() -> Expr:
                return T.broadcast(T.int32(0), LANES)

            def step(sums: Expr, steps: Expr, tap: Expr, channel: Expr) -> Expr:
                zero = T.broadcast(T.cast(buffers[2][0] if dynamic else numbers[PADDING], "int32"), LANES)
                return sums + (T.cast(steps, "int32x16") - zero) * W[tap, ramp(channel)]

            walk.emit("int32x16", begin, step, epilogue.store)

        function = build_prim_func([*spec.inputs, *weights, y], body)
        return Kernel(function, tuple(weights), *_sizes(spec, point))


class QuantisedMaxPool:
    """inputs: x (N, C, H, W) of 8 bits in one block; output the same type.

    >>> QuantisedMaxPool.__name__
    'QuantisedMaxPool'
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return _row_points(spec)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        window = spec.parameters_as(QuantisedPoolParameters).window
        least = int(np.iinfo(x.dtype).min)

        def body(X: Any, Y: Any) -> None:
            output = flatten_to_rows(Y, y.shape[1])

            def begin() -> Expr:
                return T.broadcast(T.cast(least, x.dtype), LANES)

            def step(most: Expr, steps: Expr, tap: Expr, channel: Expr) -> Expr:
                return T.max(most, steps)

            def store(value: Expr, row: Expr, channel: Expr) -> None:
                masked_store(output, value, row, channel, width=y.shape[1])

            _Walk(spec, window, X, int(point["rows"])).emit(f"{x.dtype}x16", begin, step, store)

        return Kernel(build_prim_func([x, y], body), (), *_sizes(spec, point))


def _row_points(spec: LayerSpec) -> list[Point]:
    height = spec.outputs[0].shape[2]
    return [{"rows": rows} for rows in sorted({min(height, r) for r in (4, 1, 16)}, key=lambda r: abs(r - 4))]


def _sizes(spec: LayerSpec, point: Point) -> tuple[int, int]:
    """Block size and parallelism."""
    x, y, rows = spec.inputs[0], spec.outputs[0], int(point["rows"])
    _, _, height, width, channels = x.physical
    images = spec.most(x.shape[0])
    share = min(1.0, (rows + 2) / y.shape[2])
    return round(prod((height, width, channels)) * share), images * -(-y.shape[2] // rows)


class _Walk:
    """Over outputs and channels."""

    def __init__(self, spec: LayerSpec, window: Window, X: Any, rows: int) -> None:
        (_, self.channels, self.height, self.width) = spec.inputs[0].shape
        self.out_height, self.out_width = spec.outputs[0].shape[2:]
        self.window, self.rows = window, rows
        self.images = X.shape[0]
        self.X = flatten_to_rows(X, self.channels)

    def emit(
        self,
        dtype: str,
        begin: Callable[[], Expr],
        step: Callable[[Expr, Expr, Expr, Expr], Expr],
        store: Callable[[Expr, Expr, Expr], None],
    ) -> None:
        window, chunks = self.window, -(-self.out_height // self.rows)
        with T.parallel(0, self.images * chunks) as task:
            result = T.alloc_buffer((1,), dtype, scope="local")
            image, first = T.bind(task // chunks), T.bind(task % chunks * self.rows)
            with (
                T.serial(0, T.min(self.rows, self.out_height - first)) as r,
                T.serial(0, self.out_width) as column,
            ):
                row = T.bind(first + r)
                y0 = T.bind(row * window.strides[0] - window.pads[0])
                x0 = T.bind(column * window.strides[1] - window.pads[1])
                place = T.bind((image * self.out_height + row) * self.out_width + column)
                with T.serial(0, -(-self.channels // LANES)) as vector:
                    channel = T.bind(vector * LANES)
                    T.buffer_store(result, begin(), [0])
                    self._window(image, y0, x0, channel, result, step)
                    store(result[0], place, channel)

    def _window(
        self,
        image: Expr,
        y0: Expr,
        x0: Expr,
        channel: Expr,
        result: Any,
        step: Callable[[Expr, Expr, Expr, Expr], Expr],
    ) -> None:
        (kh, kw), (dh, dw) = self.window.kernel, self.window.dilations

        def tap(u: Expr, v: Expr) -> None:
            place = (image * self.height + y0 + u * dh) * self.width + x0 + v * dw
            steps = T.bind(self.X[place, ramp(channel)])
            T.buffer_store(result, step(result[0], steps, u * kw + v, channel), [0])

        def checked() -> None:
            with T.grid(kh, kw) as (u, v):
                row, column = T.bind(y0 + u * dh), T.bind(x0 + v * dw)
                with T.If(_all([row >= 0, row < self.height, column >= 0, column < self.width])), T.Then():
                    tap(u, v)

        ends = [y0 >= 0, y0 + (kh - 1) * dh < self.height, x0 >= 0, x0 + (kw - 1) * dw < self.width]
        if kh * kw > UNROLLED:
            checked()
            return
        with T.If(_all(ends)):
            with T.Then():
                for u in range(kh):
                    for v in range(kw):
                        tap(u, v)
            with T.Else():
                checked()


def _all(conditions: Sequence[Expr]) -> Expr:
    first, *rest = conditions
    for condition in rest:
        first = T.And(first, condition)
    return first

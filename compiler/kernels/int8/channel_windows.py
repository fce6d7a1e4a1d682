"""Windows of each channel by itself, on maps with channels last: depthwise convolutions, averages, maximum pools.

Vectors hold 16 channels of one output. Where a whole window lies inside the image, no tap is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.int8_dot_product import QUAD, add_quads, import_int8_dot, interleave
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
from veltair.compiler.kernels.int8.starting_sums import load_start, starting_sums, unsigned_shift, whole_bias

UNROLLED = 9  # taps, up to which a window without checks is straight-line code
MOST_QUADS = 9  # of taps, which are straight-line code: windows of 5x5 and 6x6 as well


class QuantisedDepthwise:
    """inputs: x (N, C, H, W) of 8 bits in one block[, scale, zero point][, residual]; weights: weight (taps, C) of int8
    or int16, and as of `QuantisedProduct`.

    With VNNI one instruction takes four taps of 16 channels, whose bytes are interleaved first; taps beside the image
    are the zero point. Elsewhere, of large windows and of wide weights, each tap is a product in int32.

    >>> QuantisedDepthwise.__name__
    'QuantisedDepthwise'
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return _row_points(spec)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        parameters = spec.parameters_as(QuantisedProductParameters)
        window, y = parameters.window, spec.outputs[0]
        assert window is not None
        in_quads = "avx512_vnni" in features and not parameters.wide and prod(window.kernel) <= QUAD * MOST_QUADS
        taps = _pack_quads(spec) if in_quads else _pack_taps(spec)
        weights = [*taps, *epilogue_weights(spec, LANES)]

        def body(*buffers: Any) -> None:
            count, numbers, width = len(spec.inputs), buffers[-2], y.shape[1]
            residual = flatten_to_rows(buffers[count - 1], width) if parameters.addend is Addend.RESIDUAL else None
            output = flatten_to_rows(buffers[-1], width)
            scale, zero = (buffers[1], buffers[2]) if parameters.dynamic else (None, None)
            W, start, *rest = buffers[count:-1]
            epilogue = QuantisedEpilogue(output, residual, rest, scale, parameters, width)
            walk = _Walk(spec, window, buffers[0], int(point["rows"]))
            padding = T.cast(numbers[PADDING] if zero is None else zero[0], "int32")
            with import_int8_dot(features):
                if in_quads:
                    walk.emit("int32x16", _quads_of_taps(walk, W, start, zero, padding), epilogue.store)
                else:
                    walk.emit("int32x16", _products_of_taps(walk, W, start, padding), epilogue.store)

        function = build_prim_func([*spec.inputs, *weights, y], body)
        return Kernel(function, tuple(weights), *_sizes(spec, point))


def _pack_taps(spec: LayerSpec) -> list[NDArray[np.int32]]:
    """The weights, (taps, C), and what sums start from."""
    return [pad_axis(spec.weights["weight"], 1, LANES).astype(np.int32), _columns(whole_bias(spec))]


def _columns(values: NDArray[np.int64]) -> NDArray[np.int32]:
    return pad_axis(values, 0, LANES).astype(np.int32)


def _pack_quads(spec: LayerSpec) -> list[NDArray[np.int32]]:
    """Four taps of a channel in each int32, (taps / 4, C); and what sums start from, as of `products.pack_quads`."""
    weight = pad_axis(pad_axis(spec.weights["weight"], 1, LANES), 0, QUAD).astype(np.int8)
    quads = np.ascontiguousarray(weight.reshape(-1, QUAD, weight.shape[1]).transpose(0, 2, 1)).view(np.int32)[..., 0]
    return [quads, _columns(starting_sums(spec, unsigned_shift(spec.inputs[0].dtype)))]


def _products_of_taps(walk: _Walk, W: Any, start: Any, padding: Expr) -> WindowCode:
    """Each tap by itself, in int32; those beside the image are left out."""

    def window(at: Place, result: Any) -> None:
        zero = T.bind(T.broadcast(padding, LANES))
        T.buffer_store(result, start[ramp(at.channel)], [0])

        def step(steps: Expr, tap: Expr) -> None:
            product = (T.cast(steps, "int32x16") - zero) * W[tap, ramp(at.channel)]
            T.buffer_store(result, result[0] + product, [0])

        walk.taps_inside(at, step)

    return window


def _quads_of_taps(walk: _Walk, W: Any, start: Any, zero: Any | None, padding: Expr) -> WindowCode:
    """Four taps at a time; those beside the image are the zero point, and those behind the last have weight zero."""
    taps = list(product(*map(range, walk.window.kernel)))
    quads = [taps[i : i + QUAD] for i in range(0, len(taps), QUAD)]
    dtype = walk.X.dtype

    def window(at: Place, result: Any) -> None:
        first = load_start(start, at.channel, zero, unsigned_shift(dtype))
        T.buffer_store(result, first, [0])

        def add(taken: Callable[[int, int], Expr]) -> None:
            for number, quad in enumerate(quads):
                steps = [T.bind(taken(*tap)) for tap in quad]
                steps += [steps[-1]] * (QUAD - len(quad))
                weights = W[number, ramp(at.channel)]
                T.buffer_store(
                    result, add_quads(result[0], T.bind(interleave(*steps, signed=dtype == "int8")), weights), [0]
                )

        def checked(u: int, v: int) -> Expr:
            outside = T.broadcast(T.cast(padding, dtype), LANES)
            return T.if_then_else(walk.is_inside(at, u, v), walk.load(at, u, v), outside)

        with T.If(walk.is_whole(at)):
            with T.Then():
                add(lambda u, v: walk.load(at, u, v))
            with T.Else():
                add(checked)

    return window


class QuantisedMaxPool:
    """inputs: x (N, C, H, W) of 8 bits in one block; output the same type.

    >>> QuantisedMaxPool.__name__
    'QuantisedMaxPool'
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return _row_points(spec)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        taken = spec.parameters_as(QuantisedPoolParameters).window
        least = int(np.iinfo(x.dtype).min)

        def body(X: Any, Y: Any) -> None:
            output, walk = flatten_to_rows(Y, y.shape[1]), _Walk(spec, taken, X, int(point["rows"]))

            def window(at: Place, result: Any) -> None:
                T.buffer_store(result, T.broadcast(T.cast(least, x.dtype), LANES), [0])
                walk.taps_inside(at, lambda steps, tap: T.buffer_store(result, T.max(result[0], steps), [0]))

            def store(value: Expr, row: Expr, channel: Expr) -> None:
                masked_store(output, value, row, channel, width=y.shape[1])

            walk.emit(f"{x.dtype}x16", window, store)

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


class Place(NamedTuple):
    """A window: of which image, where its first tap lies, and of which 16 channels.

    >>> Place(image=0, row=-1, column=3, channel=16).row
    -1
    """

    image: Expr
    row: Expr
    column: Expr
    channel: Expr


WindowCode: TypeAlias = Callable[[Place, Any], None]  # leaves what becomes of a window in the buffer


class _Walk:
    """Over outputs and channels."""

    def __init__(self, spec: LayerSpec, window: Window, X: Any, rows: int) -> None:
        (_, self.channels, self.height, self.width) = spec.inputs[0].shape
        self.out_height, self.out_width = spec.outputs[0].shape[2:]
        self.window, self.rows = window, rows
        self.images = X.shape[0]
        self.X = flatten_to_rows(X, self.channels)

    def emit(self, dtype: str, window: WindowCode, store: Callable[[Expr, Expr, Expr], None]) -> None:
        (sh, sw), (top, left), chunks = self.window.strides, self.window.pads[:2], -(-self.out_height // self.rows)
        with T.parallel(0, self.images * chunks) as task:
            result = T.alloc_buffer((1,), dtype, scope="local")
            image, first = T.bind(task // chunks), T.bind(task % chunks * self.rows)
            with (
                T.serial(0, T.min(self.rows, self.out_height - first)) as r,
                T.serial(0, self.out_width) as column,
            ):
                row = T.bind(first + r)
                y0, x0 = T.bind(row * sh - top), T.bind(column * sw - left)
                place = T.bind((image * self.out_height + row) * self.out_width + column)
                with T.serial(0, -(-self.channels // LANES)) as vector:
                    channel = T.bind(vector * LANES)
                    window(Place(image, y0, x0, channel), result)
                    store(result[0], place, channel)

    def load(self, at: Place, u: Expr, v: Expr) -> Expr:
        """16 channels of a tap, which must lie inside the image."""
        dh, dw = self.window.dilations
        row = (at.image * self.height + at.row + u * dh) * self.width + at.column + v * dw
        return self.X[row, ramp(at.channel)]

    def is_inside(self, at: Place, u: Expr, v: Expr) -> Expr:
        dh, dw = self.window.dilations
        row, column = T.bind(at.row + u * dh), T.bind(at.column + v * dw)
        return _all([row >= 0, row < self.height, column >= 0, column < self.width])

    def is_whole(self, at: Place) -> Expr:
        """Whether all taps lie inside the image."""
        (kh, kw), (dh, dw) = self.window.kernel, self.window.dilations
        below, right = at.row + (kh - 1) * dh < self.height, at.column + (kw - 1) * dw < self.width
        return _all([at.row >= 0, below, at.column >= 0, right])

    def taps_inside(self, at: Place, step: Callable[[Expr, Expr], object]) -> None:
        """Call `step` with the channels and the number of every tap inside the image."""
        kh, kw = self.window.kernel

        def checked() -> None:
            with T.grid(kh, kw) as (u, v), when(self.is_inside(at, u, v)):
                step(T.bind(self.load(at, u, v)), u * kw + v)

        if kh * kw > UNROLLED:
            checked()
            return
        with T.If(self.is_whole(at)):
            with T.Then():
                for u, v in product(range(kh), range(kw)):
                    step(T.bind(self.load(at, u, v)), u * kw + v)
            with T.Else():
                checked()


def _all(conditions: Sequence[Expr]) -> Expr:
    first, *rest = conditions
    for condition in rest:
        first = T.And(first, condition)
    return first

"""Pooling on blocked activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Pool2dParameters, PoolKind
from veltair.compiler.kernels.feature_maps.blocked_planes import blocked_index, emit_plane_means, row_bytes, row_points

SUM_REGISTERS_AVX512, SUM_REGISTERS_AVX2 = 24, 6


class Pool2d:
    """The design space of "pool2d", the maximum or average over windows; padding never counts as a value.

    Columns are reduced first, which neighbouring windows share. Windows that leave the image at the left or the right
    are cut one by one; all others run in one loop, uncut. Parameters: `Pool2dParameters`::

        for point in Pool2d().points(spec, features):
            kernel = Pool2d().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        plan = _Pooling(spec, int(point["rows"]), features)
        function = build_prim_func([plan.x, plan.y], plan.emit)
        block_size = (plan.rows * plan.strides[0] + plan.kernel[0]) * row_bytes(plan.x) + plan.rows * row_bytes(plan.y)
        return Kernel(function, (), block_size, plan.blocks * plan.chunks)


class _Pooling:
    """The code of a pool; `emit` makes it."""

    # The buffers of the tensors, and one task's reduced columns; they exist while the code is emitted.
    X: Any
    Y: Any
    sums: Any

    def __init__(self, spec: LayerSpec, rows: int, features: frozenset[str]) -> None:
        self.x, self.y = spec.inputs[0], spec.outputs[0]
        self.pool = spec.parameters_as(Pool2dParameters)
        self.kernel, self.strides = self.pool.kernel, self.pool.strides
        self.height, self.width = self.x.shape[2:]
        self.rows, self.chunks = rows, -(-self.y.shape[2] // rows)
        self.blocks = -(-self.x.shape[1] // self.x.block)
        self.maximum = self.pool.kind == PoolKind.MAXIMUM
        bf16_maximum = self.maximum and self.x.dtype == "uint16"
        self.values = _Bf16Maximum() if bf16_maximum else _FloatReduction(self.maximum)
        (_, kw), (_, sw), left = self.kernel, self.strides, self.pool.pads[1]
        uncut = [c for c in range(self.y.shape[3]) if c * sw >= left and c * sw - left + kw <= self.width]
        self.inner = (uncut[0], uncut[-1] + 1) if uncut else (0, 0)  # output columns whose windows are uncut
        registers = SUM_REGISTERS_AVX512 if "avx512" in features else SUM_REGISTERS_AVX2
        pixels = max(1, (registers - kw) // sw + 1)
        self.pixels = min(pixels, 8, max(self.inner[1] - self.inner[0], 1))  # neighbours that are computed at once

    def emit(self, X: Any, Y: Any) -> None:
        """The body of the function: one task for each image, block of channels and chunk of rows."""
        self.X, self.Y = X, Y
        (oh, ow), (begin, end) = self.y.shape[2:], self.inner
        with T.parallel(0, X.shape[0] * self.blocks * self.chunks) as task:
            columns = (self.pixels - 1) * self.strides[1] + self.kernel[1]
            self.sums = T.alloc_buffer((columns,), self.values.kind, scope="local")
            image = T.bind(task // (self.blocks * self.chunks))
            block = T.bind(task // self.chunks % self.blocks)
            first = T.bind(task % self.chunks * self.rows)
            with T.serial(0, T.min(self.rows, oh - first)) as r:
                row = T.bind(first + r)
                for lane in range(0, self.x.block, self.values.lanes):
                    for column in (*range(begin), *range(end, ow)):
                        self._emit_windows((image, block, row, column, lane), 1)
                    steps, rest = divmod(end - begin, self.pixels)
                    with T.serial(0, steps) as t:
                        self._emit_windows((image, block, row, begin + t * self.pixels, lane), self.pixels)
                    if rest:
                        self._emit_windows((image, block, row, T.bind(T.int32(end - rest)), lane), rest)

    def _emit_windows(self, output: tuple[Expr, Expr, Expr, Expr, int], count: int) -> None:
        """`count` outputs from `output` (image, block, row, column, lane) on; more than one only where no window is
        cut, and then the column is no number.
        """
        image, block, row, column, lane = output
        (kh, kw), (sh, sw), (top, left, bottom, right) = self.kernel, self.strides, self.pool.pads
        values, sums = self.values, self.sums
        cut = isinstance(column, int)
        near, far = (max(column * sw - left, 0), min(column * sw - left + kw, self.width)) if cut else (0, kw)
        start = 0 if cut else column * sw - left
        up, low = T.bind(T.max(row * sh - top, 0)), T.bind(T.min(row * sh - top + kh, self.height))
        windows = [range(near + p * sw, far + p * sw) for p in range(count)]
        columns = {c: i for i, c in enumerate(sorted({c for window in windows for c in window}))}
        for i in columns.values():
            T.buffer_store(sums, values.identity(), [i])
        with T.serial(0, low - up) as u:
            for c, i in columns.items():
                value = values.load(self.X, *blocked_index(self.x, image, block, up + u, start + c, lane))
                T.buffer_store(sums, values.combine(sums[i], value), [i])
        taps: Expr = (low - up) * (far - near)
        if self.pool.count_include_pad:  # cut only where the window leaves the padded image
            across = min(column * sw + kw, self.width + left + right) - column * sw if cut else kw
            taps = (T.min(row * sh + kh, self.height + top + bottom) - row * sh) * across
        for p, window in enumerate(windows):
            result = sums[columns[window[0]]]
            for c in window[1:]:
                result = values.combine(result, sums[columns[c]])
            if not self.maximum:
                result = T.Div(result, T.broadcast(T.cast(T.max(taps, 1), "float32"), LANES))
            values.store(self.Y, result, *blocked_index(self.y, image, block, row, column + p, lane))


@dataclass(frozen=True, slots=True)
class _FloatReduction:
    """16 channels as floats: their maximum or sum."""

    maximum: bool
    kind: str = "float32x16"
    lanes: int = LANES

    def identity(self) -> Expr:
        return broadcast(-3.4028234663852886e38 if self.maximum else 0.0)

    def load(self, buffer: Any, *index: Expr) -> Expr:
        return vector_load(buffer, *index)

    def combine(self, a: Expr, b: Expr) -> Expr:
        return T.max(a, b) if self.maximum else a + b

    def store(self, buffer: Any, value: Expr, *index: Expr) -> None:
        vector_store(buffer, value, *index)


@dataclass(frozen=True, slots=True)
class _Bf16Maximum:
    """The maximum of the 32 channels of a block of bfloat16, as integers in the same order, without arithmetic."""

    kind: str = "int16x32"
    lanes: int = 32

    def identity(self) -> Expr:
        return _broadcast_int16(-32640)  # the lowest finite bfloat16

    def load(self, buffer: Any, *index: Expr) -> Expr:
        return _to_ordered_integers(T.reinterpret(self.kind, buffer[(*index[:-1], ramp(index[-1], self.lanes))]))

    def combine(self, a: Expr, b: Expr) -> Expr:
        return T.max(a, b)

    def store(self, buffer: Any, value: Expr, *index: Expr) -> None:
        bits = T.reinterpret("uint16x32", _to_ordered_integers(value))
        T.buffer_store(buffer, bits, [*index[:-1], ramp(index[-1], self.lanes)])


def _to_ordered_integers(bits: Expr) -> Expr:
    """Bits of bfloat16 <-> integers in their order: where the sign is set, the others are inverted."""
    bits = T.bind(bits)
    negative = T.shift_right(bits, _broadcast_int16(15))
    return T.bind(T.bitwise_xor(bits, T.bitwise_and(negative, _broadcast_int16(0x7FFF))))


def _broadcast_int16(value: int) -> Expr:
    return T.broadcast(T.int16(value), 32)


class GlobalAveragePool:
    """The design space of "global_average_pool", from (N, C/b, H, W, b) to row-major (N, C, 1, 1)::

    for point in GlobalAveragePool().points(spec, features):
        kernel = GlobalAveragePool().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        channels, height, _ = x.shape[1:]
        blocks = -(-channels // x.block)

        def body(X: Any, Y: Any) -> None:
            with T.parallel(0, X.shape[0] * blocks) as task:
                means = T.alloc_buffer((x.block,), "float32", scope="local")
                image, block = T.bind(task // blocks), T.bind(task % blocks)
                emit_plane_means(x, X, image, block, means)
                with T.serial(0, T.min(x.block, channels - block * x.block)) as lane:
                    T.buffer_store(Y, means[lane], [image, block * x.block + lane, 0, 0])

        return Kernel(build_prim_func([x, y], body), (), height * row_bytes(x), blocks)

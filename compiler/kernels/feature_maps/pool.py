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
        x, y = spec.inputs[0], spec.outputs[0]
        height, width = x.shape[2:]
        oh, ow = y.shape[2:]
        pool = spec.parameters_as(Pool2dParameters)
        (kh, kw), (sh, sw) = pool.kernel, pool.strides
        top, left, bottom, right = pool.pads
        rows = int(point["rows"])
        chunks = -(-oh // rows)
        blocks = -(-x.shape[1] // x.block)
        maximum = pool.kind == PoolKind.MAXIMUM
        count_pad = bool(pool.count_include_pad)
        values = _Bf16Maximum() if maximum and x.dtype == "uint16" else _FloatReduction(maximum)
        registers = SUM_REGISTERS_AVX512 if "avx512" in features else SUM_REGISTERS_AVX2
        pixels = max(1, (registers - kw) // sw + 1)  # neighbours that are computed at once
        uncut = [c for c in range(ow) if c * sw >= left and c * sw - left + kw <= width]
        inner = (uncut[0], uncut[-1] + 1) if uncut else (0, 0)
        pixels = min(pixels, 8, max(inner[1] - inner[0], 1))

        def body(X: Any, Y: Any) -> None:
            def emit_windows(
                sums: Any, image: Expr, block: Expr, lane: int, row: Expr, column: Expr, count: int
            ) -> None:
                """`count` outputs from (row, column) on; more than one only where no window is cut."""
                cut = isinstance(column, int)
                near, far = (max(column * sw - left, 0), min(column * sw - left + kw, width)) if cut else (0, kw)
                start = 0 if cut else column * sw - left
                up, low = T.bind(T.max(row * sh - top, 0)), T.bind(T.min(row * sh - top + kh, height))
                windows = [range(near + p * sw, far + p * sw) for p in range(count)]
                columns = {c: i for i, c in enumerate(sorted({c for window in windows for c in window}))}
                for i in columns.values():
                    T.buffer_store(sums, values.identity(), [i])
                with T.serial(0, low - up) as u:
                    for c, i in columns.items():
                        value = values.load(X, *blocked_index(x, image, block, up + u, start + c, lane))
                        T.buffer_store(sums, values.combine(sums[i], value), [i])
                taps: Expr = (low - up) * (far - near)
                if count_pad:  # cut only where the window leaves the padded image
                    across = min(column * sw + kw, width + left + right) - column * sw if cut else kw
                    taps = (T.min(row * sh + kh, height + top + bottom) - row * sh) * across
                for p, window in enumerate(windows):
                    result = sums[columns[window[0]]]
                    for c in window[1:]:
                        result = values.combine(result, sums[columns[c]])
                    if not maximum:
                        result = T.Div(result, T.broadcast(T.cast(T.max(taps, 1), "float32"), LANES))
                    values.store(Y, result, *blocked_index(y, image, block, row, column + p, lane))

            with T.parallel(0, X.shape[0] * blocks * chunks) as task:
                sums = T.alloc_buffer(((pixels - 1) * sw + kw,), values.kind, scope="local")
                image, block = T.bind(task // (blocks * chunks)), T.bind(task // chunks % blocks)
                first = T.bind(task % chunks * rows)
                with T.serial(0, T.min(rows, oh - first)) as r:
                    row = T.bind(first + r)
                    for lane in range(0, x.block, values.lanes):
                        for column in (*range(inner[0]), *range(inner[1], ow)):
                            emit_windows(sums, image, block, lane, row, column, 1)
                        steps, rest = divmod(inner[1] - inner[0], pixels)
                        with T.serial(0, steps) as t:
                            emit_windows(sums, image, block, lane, row, inner[0] + t * pixels, pixels)
                        if rest:
                            last = T.bind(T.int32(inner[1] - rest))
                            emit_windows(sums, image, block, lane, row, last, rest)

        block_size = (rows * sh + kh) * row_bytes(x) + rows * row_bytes(y)
        return Kernel(build_prim_func([x, y], body), (), block_size, blocks * chunks)


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

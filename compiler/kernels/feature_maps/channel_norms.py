"""Normalisation of each pixel over its channels, on blocked activations."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vector_math import sum_lanes
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import L2NormalizeParameters, LrnParameters
from veltair.compiler.kernels.feature_maps.blocked_planes import blocked_index, row_bytes, row_points

PIXELS = 4  # pixels that are summed side by side, since each sum waits for its last step


class L2Normalize:
    """The design space of "l2_normalize": y = x / max(|x|, least) * scale, with the length |x| of a pixel's channels.

    weights: scale (C). Parameters: `L2NormalizeParameters`::

        for point in L2Normalize().points(spec, features):
            kernel = L2Normalize().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(spec.outputs[0].shape[2], (1, 4, 16))

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        _, channels, height, width = y.shape
        rows = int(point["rows"])
        chunks, vectors = -(-height // rows), -(-channels // LANES)
        scale = pad_axis(spec.weights["scale"], 0, y.block)
        least = spec.parameters_as(L2NormalizeParameters).least

        def body(X: Any, S: Any, Y: Any) -> None:
            def emit_pixels(sums: Any, image: Expr, row: Expr, column: Expr, count: int) -> None:
                for p in range(count):
                    T.buffer_store(sums, broadcast(0.0), [p])
                with T.serial(0, vectors) as v:
                    for p in range(count):
                        value = T.bind(_load_pixel(x, X, image, v, row, column + p, channels))
                        T.buffer_store(sums, sums[p] + value * value, [p])
                for p in range(count):
                    length = T.max(T.sqrt(sum_lanes(sums[p])), T.float32(least))
                    T.buffer_store(sums, T.broadcast(T.Div(T.float32(1), length), LANES), [p])
                with T.serial(0, vectors) as v:
                    factor = T.bind(vector_load(S, v * LANES))
                    for p in range(count):
                        value = _load_pixel(x, X, image, v, row, column + p, channels)
                        vector_store(Y, value * sums[p] * factor, *_pixel_index(y, image, v, row, column + p))

            with T.parallel(0, X.shape[0] * chunks) as task:
                sums = T.alloc_buffer((PIXELS,), "float32x16", scope="local")
                image, first = T.bind(task // chunks), T.bind(task % chunks * rows)
                with T.serial(0, T.min(rows, height - first)) as r:
                    with T.serial(0, width // PIXELS) as t:
                        emit_pixels(sums, image, first + r, t * PIXELS, PIXELS)
                    if width % PIXELS:
                        emit_pixels(sums, image, first + r, width - width % PIXELS, width % PIXELS)

        block_size = rows * vectors * (row_bytes(x) + row_bytes(y)) * LANES // x.block
        return Kernel(build_prim_func([x, scale, y], body), (scale,), block_size, chunks)


class Lrn:
    """The design space of "lrn", local response normalisation (Krizhevsky et al. 2012).

    y = x / (bias + alpha / size * sum of squares)**0.75, where the sum goes over the `size` channels around each.
    Parameters: `LrnParameters`::

        for point in Lrn().points(spec, features):
            kernel = Lrn().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        _, channels, height, width = y.shape
        lrn = spec.parameters_as(LrnParameters)
        before, after = (lrn.size - 1) // 2, lrn.size // 2
        rows = int(point["rows"])
        chunks, vectors = -(-height // rows), -(-channels // LANES)

        def body(X: Any, Y: Any) -> None:
            with T.parallel(0, X.shape[0] * chunks) as task:
                image, first = T.bind(task // chunks), T.bind(task % chunks * rows)

                def normalized(vector: int, row: Expr, column: Expr) -> None:
                    neighbours = [
                        T.bind(_load_pixel(x, X, image, v, row, column, channels))
                        if 0 <= v < vectors
                        else broadcast(0.0)
                        for v in range(vector - 1, vector + 2)
                    ]
                    left, middle, right = (T.bind(value * value) for value in neighbours)
                    total = middle
                    for shift in range(1, before + 1):
                        order = [T.int32(LANES - shift + lane) for lane in range(LANES)]
                        total = total + T.Shuffle([left, middle], order)
                    for shift in range(1, after + 1):
                        order = [T.int32(lane + shift) for lane in range(LANES)]
                        total = total + T.Shuffle([middle, right], order)
                    base = T.bind(total * broadcast(lrn.alpha / lrn.size) + broadcast(lrn.bias))
                    root = T.bind(T.sqrt(base))
                    vector_store(
                        Y, T.Div(neighbours[1], root * T.sqrt(root)), *_pixel_index(y, image, vector, row, column)
                    )

                with T.serial(0, T.min(rows, height - first)) as r, T.serial(0, width) as column:
                    for vector in range(vectors):
                        normalized(vector, first + r, column)

        block_size = rows * vectors * (row_bytes(x) + row_bytes(y)) * LANES // x.block
        return Kernel(build_prim_func([x, y], body), (), block_size, chunks)


def _load_pixel(x: Activation, X: Any, image: Expr, vector: Expr, row: Expr, column: Expr, channels: int) -> Expr:
    """16 channels of a pixel. Lanes behind the last channel are zero: there an activation function may have left
    anything."""
    value = vector_load(X, *_pixel_index(x, image, vector, row, column))
    if channels % LANES == 0:
        return value
    kept = [T.int32(lane if lane < channels % LANES else LANES + lane) for lane in range(LANES)]
    last = T.Shuffle([value, broadcast(0.0)], kept)
    if isinstance(vector, int):
        return last if vector == channels // LANES else value
    return T.Select(T.broadcast(vector == channels // LANES, LANES), last, value)


def _pixel_index(tensor: Activation, image: Expr, vector: Expr, row: Expr, column: Expr) -> tuple[Expr, ...]:
    each = tensor.block // LANES
    return blocked_index(tensor, image, vector // each, row, column, vector % each * LANES)

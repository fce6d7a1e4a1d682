"""Normalisation of each pixel over its channels, on blocked activations."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import L2NormalizeParameters, LrnParameters
from veltair.compiler.kernels.codegen.memory import vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vector_math import sum_lanes
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.kernels.codegen.weight_packing import pad_axis
from veltair.compiler.kernels.feature_maps.spatial import inside, row_bytes, rows_of_a_task

PIXELS = 4  # summed side by side, since each sum waits for its last step


class L2Normalize:
    """y = x / max(|x|, least) * scale, |x| being the length of a pixel's channels; weights: scale (C)."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return rows_of_a_task(spec.outputs[0].shape[2], (1, 4, 16))

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        _, channels, height, width = y.shape
        rows = int(point["rows"])
        chunks, vectors = -(-height // rows), -(-channels // LANES)
        scale = pad_axis(spec.weights["scale"], 0, y.block)
        least = spec.parameters_as(L2NormalizeParameters).least

        def body(X: Any, S: Any, Y: Any) -> None:
            def pixels(sums: Any, image: Expr, row: Expr, column: Expr, count: int) -> None:
                for p in range(count):
                    T.buffer_store(sums, broadcast(0.0), [p])
                with T.serial(0, vectors) as v:
                    for p in range(count):
                        value = T.bind(_vector(x, X, image, v, row, column + p, channels))
                        T.buffer_store(sums, sums[p] + value * value, [p])
                for p in range(count):
                    length = T.max(T.sqrt(sum_lanes(sums[p])), T.float32(least))
                    T.buffer_store(sums, T.broadcast(T.Div(T.float32(1), length), LANES), [p])
                with T.serial(0, vectors) as v:
                    factor = T.bind(vector_load(S, v * LANES))
                    for p in range(count):
                        value = _vector(x, X, image, v, row, column + p, channels)
                        vector_store(Y, value * sums[p] * factor, *_at(y, image, v, row, column + p))

            with T.parallel(0, X.shape[0] * chunks) as task:
                sums = T.alloc_buffer((PIXELS,), "float32x16", scope="local")
                image, first = T.bind(task // chunks), T.bind(task % chunks * rows)
                with T.serial(0, T.min(rows, height - first)) as r:
                    with T.serial(0, width // PIXELS) as t:
                        pixels(sums, image, first + r, t * PIXELS, PIXELS)
                    if width % PIXELS:
                        pixels(sums, image, first + r, width - width % PIXELS, width % PIXELS)

        block_size = rows * vectors * (row_bytes(x) + row_bytes(y)) * LANES // x.block
        return Kernel(build_prim_func([x, scale, y], body), (scale,), block_size, chunks)


class Lrn:
    """Local response normalisation (Krizhevsky et al. 2012): y = x / (bias + alpha / size * sum of squares)**0.75, the
    sum running over `size` channels around each."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return rows_of_a_task(spec.outputs[0].shape[2])

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
                    near = range(vector - 1, vector + 2)
                    three = [
                        T.bind(_vector(x, X, image, v, row, column, channels)) if 0 <= v < vectors else broadcast(0.0)
                        for v in near
                    ]
                    left, middle, right = (T.bind(value * value) for value in three)
                    total = middle
                    for shift in range(1, before + 1):
                        order = [T.int32(LANES - shift + lane) for lane in range(LANES)]
                        total = total + T.Shuffle([left, middle], order)
                    for shift in range(1, after + 1):
                        order = [T.int32(lane + shift) for lane in range(LANES)]
                        total = total + T.Shuffle([middle, right], order)
                    base = T.bind(total * broadcast(lrn.alpha / lrn.size) + broadcast(lrn.bias))
                    root = T.bind(T.sqrt(base))
                    vector_store(Y, T.Div(three[1], root * T.sqrt(root)), *_at(y, image, vector, row, column))

                with T.serial(0, T.min(rows, height - first)) as r, T.serial(0, width) as column:
                    for vector in range(vectors):
                        normalized(vector, first + r, column)

        block_size = rows * vectors * (row_bytes(x) + row_bytes(y)) * LANES // x.block
        return Kernel(build_prim_func([x, y], body), (), block_size, chunks)


def _vector(x: Activation, X: Any, image: Expr, vector: Expr, row: Expr, column: Expr, channels: int) -> Expr:
    """16 channels of a pixel; zero behind the last, where an activation function may have left anything."""
    value = vector_load(X, *_at(x, image, vector, row, column))
    if channels % LANES == 0:
        return value
    kept = [T.int32(lane if lane < channels % LANES else LANES + lane) for lane in range(LANES)]
    last = T.Shuffle([value, broadcast(0.0)], kept)
    if isinstance(vector, int):
        return last if vector == channels // LANES else value
    return T.Select(T.broadcast(vector == channels // LANES, LANES), last, value)


def _at(tensor: Activation, image: Expr, vector: Expr, row: Expr, column: Expr) -> tuple[Expr, ...]:
    each = tensor.block // LANES
    return inside(tensor, image, vector // each, row, column, vector % each * LANES)

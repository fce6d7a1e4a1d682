"""Layer normalisation of rows: mean and deviation in two passes over a row that stays in L1, then scale and shift."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.memory import masked_store, vector_load
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vector_math import sum_lanes
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.kernels.codegen.weight_packing import pad_axis

SUMS = 4  # independent sums of a pass: additions of one wait for each other


class LayerNorm:
    """inputs: x (rows, N); weights: scale (N), shift (N); output (rows, N). Each fp32 or bfloat16, sums fp32."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{"rows": rows} for rows in (32, 8, 96)]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        width, each = y.shape[1], int(point["rows"])
        scale, shift = (pad_axis(spec.weights[k], 0, LANES) for k in ("scale", "shift"))

        def body(X: Any, S: Any, B: Any, Y: Any) -> None:
            rows = X.shape[0]
            with T.parallel(0, T.ceildiv(rows, each)) as task:
                sums = T.alloc_buffer((SUMS,), "float32x16", scope="local")
                with T.serial(0, T.min(each, rows - task * each)) as r:
                    row = T.bind(task * each + r)
                    normalise(X, row, S, B, Y, row, width, spec.attributes["epsilon"], sums)

        function = build_prim_func([x, scale, shift, y], body)
        return Kernel(function, (scale, shift), each * width * 6, 1)


def normalise(X: Any, source: Expr, S: Any, B: Any, Y: Any, row: Expr, width: int, epsilon: float, sums: Any) -> None:
    """Row `source` of X to row `row` of Y. `sums` holds SUMS vectors."""
    mean = T.bind(_total(lambda column: vector_load(X, source, column), width, sums) * T.float32(1 / width))
    centre = T.bind(T.broadcast(mean, LANES))

    def square(column: Expr) -> Expr:
        centred = T.bind(vector_load(X, source, column) - centre)
        return centred * centred

    variance = T.bind(_total(square, width, sums) * T.float32(1 / width))
    inverse = T.bind(T.broadcast(T.float32(1) / T.sqrt(variance + T.float32(epsilon)), LANES))
    with T.serial(0, -(-width // LANES)) as vector:
        column = T.bind(vector * LANES)
        value = (vector_load(X, source, column) - centre) * inverse * vector_load(S, column) + vector_load(B, column)
        masked_store(Y, T.bind(value), row, column, width=width)


def _total(term: Any, width: int, sums: Any) -> Expr:
    """The sum of a term over a row."""
    vectors = width // LANES
    for i in range(SUMS):
        T.buffer_store(sums, broadcast(0.0), [i])
    with T.serial(0, vectors // SUMS) as step:
        for i in range(SUMS):
            T.buffer_store(sums, sums[i] + term((step * SUMS + i) * LANES), [i])
    for vector in range(vectors // SUMS * SUMS, vectors):
        T.buffer_store(sums, sums[0] + term(vector * LANES), [0])
    if width % LANES:
        inside = T.ramp(0, 1, LANES) < T.broadcast(T.int32(width % LANES), LANES)
        T.buffer_store(sums, sums[0] + T.Select(inside, term(vectors * LANES), broadcast(0.0)), [0])
    return sum_lanes(sums[0] + sums[1] + (sums[2] + sums[3]))

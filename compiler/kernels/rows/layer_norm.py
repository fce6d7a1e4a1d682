"""Layer normalisation of rows: mean and variance in two passes over a row that stays in L1, then scale and shift."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import masked_store, vector_load
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vector_math import sum_lanes
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.sequence import LayerNormParameters

SUMS = 4  # independent sums of a pass: additions to one sum wait for each other


class LayerNorm:
    """inputs: x (rows, N); weights: scale (N), shift (N); output (rows, N). Each is fp32 or bfloat16, sums are fp32.

    Parameters: `LayerNormParameters`.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> x = Activation("x", "float32", (-128, 768))
    >>> LayerNorm().points(LayerSpec("norm", "layer_norm", (x,), (x,), {}, flops=0), frozenset({"avx2"}))[0]
    {'rows': 32}
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{"rows": rows} for rows in (32, 8, 96)]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        width, rows_of_task = y.shape[1], int(point["rows"])
        scale, shift = (pad_axis(spec.weights[k], 0, LANES) for k in ("scale", "shift"))
        epsilon = spec.parameters_as(LayerNormParameters).epsilon

        def body(X: Any, S: Any, B: Any, Y: Any) -> None:
            rows = X.shape[0]
            with T.parallel(0, T.ceildiv(rows, rows_of_task)) as task:
                code = RowNormalisation(S, B, Y, width, epsilon)
                with T.serial(0, T.min(rows_of_task, rows - task * rows_of_task)) as r:
                    row = T.bind(task * rows_of_task + r)
                    code.emit(X, row, row)

        function = build_prim_func([x, scale, shift, y], body)
        return Kernel(function, (scale, shift), rows_of_task * width * 6, 1)


class RowNormalisation:
    """Code of a task that normalises rows; made in the task, whose registers it takes.

    ::

        code = RowNormalisation(scale, shift, output, width, epsilon=1e-5)
        code.emit(x, row, row)
    """

    def __init__(self, scale: Any, shift: Any, output: Any, width: int, epsilon: float) -> None:
        """scale, shift: buffers (N padded to whole vectors). output: buffer (rows, N). width: N."""
        self.scale, self.shift, self.output, self.width, self.epsilon = scale, shift, output, width, epsilon
        self._sums = T.alloc_buffer((SUMS,), "float32x16", scope="local")

    def emit(self, source: Any, source_row: Expr, row: Expr) -> None:
        """Normalise a row of a buffer to a row of the output."""
        mean = T.bind(self._total(lambda column: vector_load(source, source_row, column)) * T.float32(1 / self.width))
        centre = T.bind(T.broadcast(mean, LANES))

        def square(column: Expr) -> Expr:
            centred = T.bind(vector_load(source, source_row, column) - centre)
            return centred * centred

        variance = T.bind(self._total(square) * T.float32(1 / self.width))
        inverse = T.bind(T.broadcast(T.float32(1) / T.sqrt(variance + T.float32(self.epsilon)), LANES))
        with T.serial(0, -(-self.width // LANES)) as vector:
            column = T.bind(vector * LANES)
            value = (vector_load(source, source_row, column) - centre) * inverse
            value = value * vector_load(self.scale, column) + vector_load(self.shift, column)
            masked_store(self.output, T.bind(value), row, column, width=self.width)

    def _total(self, term: Callable[[Expr], Expr]) -> Expr:
        """The sum of a term, a function of the first of 16 columns, over a row."""
        sums, vectors = self._sums, self.width // LANES
        for i in range(SUMS):
            T.buffer_store(sums, broadcast(0.0), [i])
        with T.serial(0, vectors // SUMS) as step:
            for i in range(SUMS):
                T.buffer_store(sums, sums[i] + term((step * SUMS + i) * LANES), [i])
        for vector in range(vectors // SUMS * SUMS, vectors):
            T.buffer_store(sums, sums[0] + term(vector * LANES), [0])
        if self.width % LANES:
            inside = T.ramp(0, 1, LANES) < T.broadcast(T.int32(self.width % LANES), LANES)
            T.buffer_store(sums, sums[0] + T.Select(inside, term(vectors * LANES), broadcast(0.0)), [0])
        return sum_lanes(sums[0] + sums[1] + (sums[2] + sums[3]))

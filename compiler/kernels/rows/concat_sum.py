"""The sum of tensors that ONNX concatenates first: each is read where it lies, fp32 or bfloat16.

Every width is supported: what fills no vector of 16 is a shorter vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import loop_over_columns
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vector_math import sum_lanes
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.recommendation import ConcatSumParameters

SUMS = 4  # accumulators: an addition takes four cycles


class ConcatSum:
    """inputs: any number of (rows, c * D), where c may differ; output (rows, D): the sum of all, times `scale`.

    This is what a concatenation and a sum over the same axis give (AtRec III-B2). Where D divides 16, vectors run along
    a row, whatever lies in it, and are folded at its end; else they run along D. Parameters: `ConcatSumParameters`.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> x, y = Activation("x", "float32", (-1, 32)), Activation("y", "float32", (-1, 16))
    >>> spec = LayerSpec("sum", "concat_sum", (x, x), (y,), {}, flops=0, max_batch=16)
    >>> ConcatSum().points(spec, frozenset({"avx2"}))
    [{'rows': 16}, {'rows': 4}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{"rows": rows} for rows in (16, 4, 64) if rows == 4 or rows <= spec.most(spec.outputs[0].shape[0])]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        rows_of_task, width = int(point["rows"]), spec.outputs[0].shape[1]

        def body(*buffers: Any) -> None:
            rows = buffers[-1].shape[0]
            with T.parallel(0, T.ceildiv(rows, rows_of_task)) as task:
                code = _ConcatSumCode(spec, buffers)
                with T.serial(0, T.min(rows_of_task, rows - task * rows_of_task)) as r:
                    code.emit_row(T.bind(task * rows_of_task + r))

        function = build_prim_func([*spec.inputs, *spec.outputs], body)
        columns = sum(tensor.shape[1] for tensor in spec.inputs) + width
        tasks = -(-spec.most(spec.outputs[0].shape[0]) // rows_of_task)
        return Kernel(function, (), 4 * rows_of_task * columns, tasks * SUMS)


class _ConcatSumCode:
    """Code of a task; made in the task, whose memory it takes."""

    def __init__(self, spec: LayerSpec, buffers: Sequence[Any]) -> None:
        *pieces, self.output = buffers
        self.pieces = [(piece, tensor.shape[1]) for piece, tensor in zip(pieces, spec.inputs, strict=True)]
        self.width = spec.outputs[0].shape[1]
        self.scale = spec.parameters_as(ConcatSumParameters).scale
        self.sums = T.alloc_buffer((SUMS, LANES), "float32", scope="local")

    def emit_row(self, row: Expr) -> None:
        if self.width < LANES and LANES % self.width == 0:
            self._sum_along_row(row)
        else:
            self._sum_columns(row)

    def _sum_columns(self, row: Expr) -> None:
        """Vectors run along D; each accumulator takes every fourth piece."""
        for first, count in loop_over_columns(self.width):
            for at in range(SUMS):
                vector_store(self.sums, broadcast(0.0, count), at, 0, count=count)
            for number, (piece, extent) in enumerate(self.pieces):
                with T.serial(0, extent // self.width) as c:
                    self._add(number % SUMS, piece, row, c * self.width + first, count)
            parts = [vector_load(self.sums, at, 0, count=count) for at in range(SUMS)]
            total = (parts[0] + parts[1]) + (parts[2] + parts[3])
            vector_store(self.output, total * broadcast(self.scale, count), row, first, count=count)

    def _sum_along_row(self, row: Expr) -> None:
        """Vectors run along the row, four accumulators in turn."""
        for at in range(SUMS):
            vector_store(self.sums, broadcast(0.0), at, 0)
        step = SUMS * LANES
        for number, (piece, extent) in enumerate(self.pieces):
            if extent >= step:
                with T.serial(0, extent // step) as vector:
                    for at in range(SUMS):
                        self._add(at, piece, row, vector * step + at * LANES, LANES)
            for first in range(extent - extent % step, extent, LANES):
                count = min(LANES, extent - first)
                self._add((number + first // LANES) % SUMS, piece, row, T.int32(first), count)
        parts = [vector_load(self.sums, at, 0) for at in range(SUMS)]
        self._fold(T.bind((parts[0] + parts[1]) + (parts[2] + parts[3])), row)

    def _add(self, at: int, piece: Any, row: Expr, first: Expr, count: int) -> None:
        """Add `count` columns of a piece to an accumulator."""
        value = vector_load(piece, row, first, count=count)
        vector_store(self.sums, vector_load(self.sums, at, 0, count=count) + value, at, 0, count=count)

    def _fold(self, value: Expr, row: Expr) -> None:
        """Add halves of a vector to halves until D lanes are left, and store them."""
        if self.width == 1:
            vector_store(self.output, sum_lanes(value) * T.float32(self.scale), row, T.int32(0), count=1)
            return
        half = LANES // 2
        while half >= self.width:
            low, high = (T.Shuffle([value], [T.int32(first + i) for i in range(half)]) for first in (0, half))
            value, half = T.bind(low + high), half // 2
        vector_store(self.output, value * broadcast(self.scale, self.width), row, T.int32(0), count=self.width)

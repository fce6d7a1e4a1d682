"""Sums of one-hot vectors without the vectors: what is left is counting, or adding up rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import loop_over_columns, when
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import Expr, broadcast
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.recommendation import OneHotSumParameters


class OneHotSum:
    """inputs: ids (rows, lookups) int64 or int32 of each column; output (rows, sum of depths): how often each id stands
    in a row, times the column's scale (AtRec III-A2). With weights table (sum of depths, N) and bias (N): those counts
    times the table, plus the bias, which is the sum of gathered rows.

    As in ONNX's OneHot, ids below 0 count from the depth down, and ids outside of the depth count nothing. Parameters:
    `OneHotSumParameters`.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> ids, y = Activation("ids", "int64", (-1, 1)), Activation("y", "float32", (-1, 5))
    >>> spec = LayerSpec("one_hot", "one_hot_sum", (ids,), (y,), {}, flops=0, max_batch=16)
    >>> OneHotSum().points(spec, frozenset({"avx2"}))
    [{'rows': 16}, {'rows': 4}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{"rows": rows} for rows in (16, 4, 64) if rows == 4 or rows <= spec.most(spec.outputs[0].shape[0])]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        rows_of_task, width = int(point["rows"]), spec.outputs[0].shape[1]
        weights = [spec.weights[name] for name in ("table", "bias") if name in spec.weights]
        matrices = tuple(w.reshape(1, -1) if w.ndim == 1 else w for w in weights)

        def body(*buffers: Any) -> None:
            output = buffers[-1]
            table, bias = buffers[-3:-1] if weights else (None, None)
            rows = output.shape[0]
            tasks = T.ceildiv(rows, rows_of_task)
            with T.parallel(0, tasks) as task, T.serial(0, T.min(rows_of_task, rows - task * rows_of_task)) as r:
                row = T.bind(task * rows_of_task + r)
                for column, n in loop_over_columns(width):
                    value = vector_load(bias, 0, column, count=n) if bias is not None else broadcast(0.0, n)
                    vector_store(output, value, row, column, count=n)
                _emit_row(spec, buffers[: len(spec.inputs)], table, output, row)

        function = build_prim_func([*spec.inputs, *matrices, *spec.outputs], body)
        lookups = sum(tensor.shape[1] for tensor in spec.inputs)
        row_bytes = 8 * lookups + 4 * width * (1 + lookups * bool(weights))
        tasks = -(-spec.most(spec.outputs[0].shape[0]) // rows_of_task)
        return Kernel(function, matrices, rows_of_task * row_bytes, tasks)


def _emit_row(spec: LayerSpec, ids: Sequence[Any], table: Any | None, output: Any, row: Expr) -> None:
    """Count, or gather, what the ids of one row say."""
    parameters, start = spec.parameters_as(OneHotSumParameters), 0
    for numbers, depth, scale in zip(ids, parameters.depths, parameters.scales, strict=True):
        with T.serial(0, numbers.shape[1]) as lookup:
            number = T.bind(T.cast(numbers[row, lookup], "int64"))
            hot = T.bind(T.Select(number < T.int64(0), number + T.int64(depth), number))
            with when(T.cast(hot, "uint64") < T.uint64(depth)):
                place = T.bind(T.cast(hot, "int32") + start)
                if table is None:
                    T.buffer_store(output, output[row, place] + T.float32(scale), [row, place])
                else:
                    _add_row(table, place, scale, output, row)
        start += depth


def _add_row(table: Any, place: Expr, scale: float, output: Any, row: Expr) -> None:
    for column, n in loop_over_columns(int(output.shape[1])):
        value = vector_load(table, place, column, count=n) * broadcast(scale, n)
        vector_store(output, vector_load(output, row, column, count=n) + value, row, column, count=n)

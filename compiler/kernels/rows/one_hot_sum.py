"""One-hot vectors summed, without one-hot vectors: what is left is counting, or adding up rows of a table."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.control_flow import loop_over_columns, when
from veltair.compiler.kernels.codegen.memory import vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import Expr, broadcast


class OneHotSum:
    """inputs: ids (rows, lookups) int64 or int32 of each column; output (rows, sum of depths): how often each id stands
    in a row, times the column's scale (AtRec III-A2). With weights table (sum of depths, N) and bias (N), that times
    the table, plus the bias: the sum of gathered rows.

    Attributes `depths` and `scales` are one number a column. As ONNX's OneHot has it, ids below 0 count from the depth
    down, and what is outside counts nothing.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{"rows": rows} for rows in (16, 4, 64) if rows == 4 or rows <= spec.most(spec.outputs[0].shape[0])]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        each, width = int(point["rows"]), spec.outputs[0].shape[1]
        weights = tuple(spec.weights[name] for name in ("table", "bias") if name in spec.weights)

        def count(Y: Any, row: Expr, place: Expr, scale: float) -> None:
            T.buffer_store(Y, Y[row, place] + T.float32(scale), [row, place])

        def gather(table: Any, Y: Any, row: Expr, place: Expr, scale: float) -> None:
            for column, n in loop_over_columns(width):
                value = vector_load(table, place, column, count=n) * broadcast(scale, n)
                vector_store(Y, vector_load(Y, row, column, count=n) + value, row, column, count=n)

        def body(*buffers: Any) -> None:
            ids, Y = buffers[: len(spec.inputs)], buffers[-1]
            rows = Y.shape[0]
            with T.parallel(0, T.ceildiv(rows, each)) as task, T.serial(0, T.min(each, rows - task * each)) as r:
                row, start = T.bind(task * each + r), 0
                for column, n in loop_over_columns(width):
                    value = vector_load(buffers[-2], 0, column, count=n) if weights else broadcast(0.0, n)
                    vector_store(Y, value, row, column, count=n)
                for numbers, depth, scale in zip(ids, *(spec.attributes[k] for k in ("depths", "scales")), strict=True):
                    with T.serial(0, numbers.shape[1]) as lookup:
                        found = T.bind(T.cast(numbers[row, lookup], "int64"))
                        place = T.bind(T.Select(found < T.int64(0), found + T.int64(depth), found))
                        with when(T.cast(place, "uint64") < T.uint64(depth)):
                            where = T.bind(T.cast(place, "int32") + start)
                            if weights:
                                gather(buffers[-3], Y, row, where, scale)
                            else:
                                count(Y, row, where, scale)
                    start += depth

        bias = tuple(w.reshape(1, -1) if w.ndim == 1 else w for w in weights)
        function = build_prim_func([*spec.inputs, *bias, *spec.outputs], body)
        lookups = sum(tensor.shape[1] for tensor in spec.inputs)
        row_bytes = 8 * lookups + 4 * width * (1 + lookups * bool(weights))
        return Kernel(function, bias, each * row_bytes, -(-spec.most(spec.outputs[0].shape[0]) // each))

"""Rows side by side, as before the first dense layer of a recommendation model, which reads its embeddings joined.

A general operator has one loop over the whole row, which asks for each element which tensor it comes from. Here each
tensor has a loop of its own, and the result may be rounded to bfloat16 on the way, for the products that read it.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point


class ConcatRows:
    """inputs: any number of x (M, W); output (M, sum of W); each float32 or bfloat16. M may depend on the batch.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> x, y = Activation("x", "float32", (8, 16)), Activation("y", "float32", (8, 32))
    >>> ConcatRows().points(LayerSpec("join", "concat_rows", (x, x), (y,), {}, flops=0), frozenset({"avx2"}))
    [{'rows': 4}, {'rows': 1}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        rows = spec.most(spec.outputs[0].shape[0])
        return [{"rows": r} for r in (16, 64, 4, 1) if r == 1 or r < rows]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        rows = int(point["rows"])

        def body(*buffers: Any) -> None:
            *pieces, Y = buffers
            with T.parallel(0, T.ceildiv(Y.shape[0], rows)) as task:
                first = T.bind(task * rows)
                start = 0
                for X, tensor in zip(pieces, spec.inputs, strict=True):
                    with T.serial(0, T.min(rows, Y.shape[0] - first)) as r:
                        copy_row(X, Y, first + r, start, tensor.shape[1])
                    start += tensor.shape[1]

        function = build_prim_func([*spec.inputs, *spec.outputs], body)
        item_bytes = {"uint16": 2}
        row_bytes = sum(t.shape[1] * item_bytes.get(t.dtype, 4) for t in (*spec.inputs, *spec.outputs))
        tasks = -(-spec.most(spec.outputs[0].shape[0]) // rows)
        return Kernel(function, (), rows * row_bytes, tasks)


def copy_row(X: Any, Y: Any, row: Expr, start: int, width: int) -> None:
    """Copy a row of X, of `width` columns, to the same row of Y from column `start` on. If it is longer than a vector,
    its last vector overlaps the one before."""
    row = T.bind(row)
    if width >= LANES:
        with T.serial(0, width // LANES) as vector:
            column = T.bind(vector * LANES)
            vector_store(Y, vector_load(X, row, column), row, start + column)
        if width % LANES:
            vector_store(Y, vector_load(X, row, width - LANES), row, start + width - LANES)
        return
    vector_store(Y, vector_load(X, row, T.int32(0), count=width), row, T.int32(start), count=width)

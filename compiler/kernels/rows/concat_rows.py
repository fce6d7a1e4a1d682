"""Rows side by side: what stands before the first dense layer of a recommendation model, its embeddings joined.

As a general operator, one loop over the whole row asks for each element which tensor it comes from. Here each tensor
has a loop of its own, and the result may be rounded for products in bfloat16 on the way.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.memory import vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES


class ConcatRows:
    """inputs: any number, x (M, W); output (M, sum of W); each float32 or bfloat16. M may depend on the batch."""

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
        row_bytes = sum(
            tensor.shape[1] * (2 if tensor.dtype == "uint16" else 4) for tensor in (*spec.inputs, *spec.outputs)
        )
        tasks = -(-spec.most(spec.outputs[0].shape[0]) // rows)
        return Kernel(function, (), rows * row_bytes, tasks)


def copy_row(X: Any, Y: Any, row: Any, start: int, width: int) -> None:
    """One row of X to column `start` of Y. A row of a vector and more ends in one that laps over the one before."""
    row = T.bind(row)
    if width >= LANES:
        with T.serial(0, width // LANES) as vector:
            column = T.bind(vector * LANES)
            vector_store(Y, vector_load(X, row, column), row, start + column)
        if width % LANES:
            vector_store(Y, vector_load(X, row, width - LANES), row, start + width - LANES)
        return
    vector_store(Y, vector_load(X, row, T.int32(0), count=width), row, T.int32(start), count=width)

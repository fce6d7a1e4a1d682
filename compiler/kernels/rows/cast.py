"""Row-major tensors from float32 to bfloat16 and back."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.memory import masked_store, vector_load
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr


class Cast:
    """inputs: x of any shape; output the same in the other type. A vector is one of 16 elements of the last axis."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        width = x.shape[-1]

        def body(X: Any, Y: Any) -> None:
            rows = 1
            for dim in X.shape[:-1]:
                rows = rows * dim
            with T.parallel(0, rows) as row:
                index: list[Expr] = []
                left = row
                for dim in reversed(X.shape[:-1]):
                    index.insert(0, T.bind(left % dim))
                    left = T.bind(left // dim)
                with T.serial(0, -(-width // LANES)) as vector:
                    column = T.bind(vector * LANES)
                    masked_store(Y, T.bind(vector_load(X, *index, column)), *index, column, width=width)

        return Kernel(build_prim_func([x, y], body), (), width * 6, 1)

"""Row-major tensors from float32 to bfloat16 and back."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import masked_store, vector_load
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.matmul.batched_operands import unravel


class Cast:
    """inputs: x of any shape; output: the same in the other type. Vectors hold 16 elements of the last axis.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> x, y = Activation("x", "float32", (-1, 64)), Activation("y", "uint16", (-1, 64))
    >>> Cast().points(LayerSpec("cast", "cast", (x,), (y,), {}, flops=0), frozenset({"avx2"}))
    [{}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        width = x.shape[-1]

        def body(X: Any, Y: Any) -> None:
            rows = 1
            for extent in X.shape[:-1]:
                rows = rows * extent
            with T.parallel(0, rows) as row:
                index = unravel(row, X.shape[:-1])
                with T.serial(0, -(-width // LANES)) as vector:
                    column = T.bind(vector * LANES)
                    masked_store(Y, T.bind(vector_load(X, *index, column)), *index, column, width=width)

        return Kernel(build_prim_func([x, y], body), (), width * 6, 1)

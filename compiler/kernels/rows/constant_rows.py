"""Rows that no input of the model reaches: a constant output, or constant rows side by side with computed ones."""

from __future__ import annotations

import math
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point


class ConstantRows:
    """No inputs; weights: table (n, W); output (M, W) of the same type: its row i is row i mod n of the table.

    >>> import numpy as np
    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> y, table = Activation("y", "float32", (-1, 64)), np.zeros((1, 64), np.float32)
    >>> ConstantRows().points(LayerSpec("y", "constant_rows", (), (y,), {"table": table}, flops=0), frozenset())
    [{}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        (y,), table = spec.outputs, spec.weights["table"]
        count, width = table.shape

        def body(Table: Any, Y: Any) -> None:
            with T.parallel(0, Y.shape[0]) as row:
                source = T.bind(row % count)
                with T.serial(0, width) as column:
                    T.buffer_store(Y, Table[source, column], [row, column])

        row_bytes = 2 * table.nbytes // max(1, math.prod(table.shape)) * width
        return Kernel(build_prim_func([table, y], body), (table,), row_bytes, spec.most(y.shape[0]))

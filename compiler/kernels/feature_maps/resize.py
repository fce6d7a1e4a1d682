"""Linear interpolation between rows and columns of feature maps, with the epilogue behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import ResizeParameters
from veltair.compiler.kernels.feature_maps.blocked_planes import blocked_index, row_bytes, row_points, row_tasks

TAPS = ("above", "below", "down", "left", "right", "across")


class Resize:
    """The design space of "resize": y = activation(x between two rows and two columns [+ residual]).

    inputs: x (N, C/b, H, W, b)[, residual as the output]; weights, for each row of the output: above, below (the rows
    of x between which it lies, int32) and down (how far from the first, float32); likewise for each column: left,
    right, across. Parameters: `ResizeParameters`::

        for point in Resize().points(spec, features):
            kernel = Resize().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y, activation = spec.inputs[0], spec.outputs[0], spec.parameters_as(ResizeParameters).activation
        blocks, (height, width), rows = -(-y.shape[1] // y.block), y.shape[2:], int(point["rows"])
        chunks = -(-height // rows)
        weights = [np.ascontiguousarray(spec.weights[name]) for name in TAPS]

        def body(X: Any, *rest: Any) -> None:
            above, below, down, left, right, across, Y = rest[-7:]
            with row_tasks(X, blocks, chunks, rows, height) as (image, block, row):
                sources, lower = [T.bind(above[row]), T.bind(below[row])], T.bind(T.broadcast(down[row], LANES))
                with T.serial(0, width) as column:
                    places, further = [T.bind(left[column]), T.bind(right[column])], across[column]
                    later = T.bind(T.broadcast(further, LANES))
                    for first in range(0, y.block, LANES):

                        def between(source: Expr, lane: int = first) -> Expr:
                            begin, end = (
                                T.bind(vector_load(X, *blocked_index(x, image, block, source, place, lane)))
                                for place in places
                            )
                            return T.bind(begin + (end - begin) * later)

                        begin, end = map(between, sources)
                        value = begin + (end - begin) * lower
                        if len(spec.inputs) > 1:
                            at = blocked_index(spec.inputs[1], image, block, row, column, first)
                            value = value + vector_load(rest[0], *at)
                        value = apply_activation(value, activation, approximate=y.dtype == "uint16")
                        vector_store(Y, value, *blocked_index(y, image, block, row, column, first))

        function = build_prim_func([*spec.inputs, *weights, y], body)
        block_size = rows * sum(row_bytes(t) for t in (*spec.inputs, y))
        return Kernel(function, tuple(weights), block_size, blocks * chunks)

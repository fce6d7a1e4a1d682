"""Rows and columns of feature maps by their numbers: enlarged by repetition, cut, mirrored, thinned out."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import ramp
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.feature_maps.blocked_planes import blocked_index, row_bytes, row_points, row_tasks

CHANNELS = 64  # that one instruction or a few copy


class PickedPixels:
    """The design space of "pick_pixels", between tensors (N, C, H, W) in blocks of channels and of one type.

    weights: rows (H of the output), columns (W of the output), int32: which row and column each is::

        for point in PickedPixels().points(spec, features):
            kernel = PickedPixels().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        blocks, (height, width), taken = -(-y.shape[1] // y.block), y.shape[2:], int(point["rows"])
        chunks = -(-height // taken)
        weights = [np.ascontiguousarray(spec.weights[name], np.int32) for name in ("rows", "columns")]

        def body(X: Any, rows: Any, columns: Any, Y: Any) -> None:
            with row_tasks(X, blocks, chunks, taken, height) as (image, b, row):
                source = T.bind(rows[row])
                with T.serial(0, width) as column:
                    place = T.bind(columns[column])
                    for first in range(0, y.block, CHANNELS):
                        lanes = ramp(first, min(CHANNELS, y.block - first))  # as they are, of whatever type
                        value = X[blocked_index(x, image, b, source, place, lanes)]
                        T.buffer_store(Y, value, list(blocked_index(y, image, b, row, column, lanes)))

        function = build_prim_func([x, *weights, y], body)
        return Kernel(function, tuple(weights), 2 * taken * row_bytes(y), blocks * chunks)

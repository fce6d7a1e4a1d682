"""Element-wise chains on blocked activations."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import ElementwiseParameters
from veltair.compiler.kernels.feature_maps.blocked_planes import blocked_index, row_bytes, row_points


class Elementwise:
    """The design space of "elementwise", a chain of steps on blocked tensors.

    inputs: any number of tensors of one shape; weights: scale and shift (C), where a step is "affine". Parameters:
    `ElementwiseParameters`::

        for point in Elementwise().points(spec, features):
            kernel = Elementwise().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        y, steps = spec.outputs[0], spec.parameters_as(ElementwiseParameters).steps
        rows = int(point["rows"])
        _, channels, height, width = y.shape
        chunks, blocks = -(-height // rows), -(-channels // y.block)
        weights = tuple(pad_axis(spec.weights[k], 0, y.block) for k in ("scale", "shift") if k in spec.weights)

        def body(*buffers: Any) -> None:
            Y = buffers[-1]
            with T.parallel(0, Y.shape[0] * blocks * chunks) as task:
                image, block = T.bind(task // (blocks * chunks)), T.bind(task // chunks % blocks)
                first = T.bind(task % chunks * rows)
                with (
                    T.serial(0, T.min(rows, height - first)) as r,
                    T.grid(width, y.block // LANES) as (column, half),
                ):

                    def load_input(i: int) -> Expr:
                        where = blocked_index(spec.inputs[i], image, block, first + r, column, half * LANES)
                        return vector_load(buffers[i], *where)

                    value = load_input(0)
                    for step in steps:
                        kind, _, argument = step.partition(":")
                        if kind == "add":
                            value = value + load_input(int(argument))
                        elif kind == "mul":
                            value = value * load_input(int(argument))
                        elif kind == "affine":
                            channel = block * y.block + half * LANES
                            value = value * vector_load(buffers[-3], channel) + vector_load(buffers[-2], channel)
                        else:
                            value = apply_activation(value, step)
                    vector_store(Y, value, *blocked_index(y, image, block, first + r, column, half * LANES))

        function = build_prim_func([*spec.inputs, *weights, y], body)
        block_size = rows * sum(row_bytes(t) for t in (*spec.inputs, y))
        return Kernel(function, weights, block_size, blocks * chunks)

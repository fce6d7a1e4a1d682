"""The geometry of kernels on blocked activations, and element-wise chains.

They are bound by memory, so their one choice is how many rows a task takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import ElementwiseParameters
from veltair.compiler.kernels.codegen.activation import apply_activation
from veltair.compiler.kernels.codegen.memory import vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.kernels.codegen.weight_packing import pad_axis


def rows_of_a_task(height: int, rows: tuple[int, ...] = (4, 1, 16, 1024)) -> list[Point]:
    return [{"rows": r} for r in dict.fromkeys(min(height, r) for r in rows)]


def inside(tensor: Activation, image: Expr, block: Expr, row: Expr, column: Expr, lane: Expr) -> tuple[Expr, ...]:
    """The index of an element of a haloed plane."""
    return image, block, row + tensor.halo.top, column + tensor.halo.left, lane


def row_bytes(tensor: Activation) -> int:
    """Of one row of one channel block."""
    return tensor.shape[3] * tensor.block * np.dtype(tensor.dtype).itemsize


def means_of_planes(x: Activation, X: Any, image: Expr, block: Expr, means: Any) -> None:
    """The means over the planes of a block of channels; in several sums, since each step waits for the one before."""
    height, width = x.shape[2:]
    starts = range(0, x.block, LANES)
    count = min(width, 8)
    sums = T.alloc_buffer((count * len(starts),), "float32x16", scope="local")
    for i in range(count * len(starts)):
        T.buffer_store(sums, broadcast(0.0), [i])

    def add(pixels: int, row: Expr, column: Expr) -> None:
        for p in range(pixels):
            for half, start in enumerate(starts):
                i = half * count + p
                value = vector_load(X, *inside(x, image, block, row, column + p, start))
                T.buffer_store(sums, sums[i] + value, [i])

    with T.serial(0, height) as row:
        with T.serial(0, width // count) as t:
            add(count, row, t * count)
        if width % count:
            add(width % count, row, width - width % count)
    for half, start in enumerate(starts):
        total = sums[half * count]
        for p in range(1, count):
            total = total + sums[half * count + p]
        vector_store(means, total * broadcast(1.0 / (height * width)), start)


class Elementwise:
    """A chain on blocked tensors: first input, then attribute `steps`.

    A step is "add:i" or "mul:i" with input i, "affine" with the weights scale and shift (C), or an activation.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return rows_of_a_task(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        y = spec.outputs[0]
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

                    def at(i: int) -> Expr:
                        where = inside(spec.inputs[i], image, block, first + r, column, half * LANES)
                        return vector_load(buffers[i], *where)

                    value = at(0)
                    for step in spec.parameters_as(ElementwiseParameters).steps:
                        kind, _, argument = step.partition(":")
                        if kind == "add":
                            value = value + at(int(argument))
                        elif kind == "mul":
                            value = value * at(int(argument))
                        elif kind == "affine":
                            channel = block * y.block + half * LANES
                            value = value * vector_load(buffers[-3], channel) + vector_load(buffers[-2], channel)
                        else:
                            value = apply_activation(value, step)
                    vector_store(Y, value, *inside(y, image, block, first + r, column, half * LANES))

        function = build_prim_func([*spec.inputs, *weights, y], body)
        block_size = rows * sum(row_bytes(t) for t in (*spec.inputs, y))
        return Kernel(function, weights, block_size, blocks * chunks)

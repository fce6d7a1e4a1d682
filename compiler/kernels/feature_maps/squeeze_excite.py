"""Squeeze-and-excite (Hu et al. 2018) as one layer: each channel is scaled by a function of all channels' means.

Two passes over the tensor, each in parallel: the first takes the mean of a block of channels and that block's part of
the hidden layer; the second adds the parts up, makes the gates of its own channels and scales them, which are in the
cache still where the tensor is small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.bf16 import array_to_bf16
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import SqueezeExciteParameters
from veltair.compiler.kernels.feature_maps.blocked_planes import blocked_index, emit_plane_means, row_bytes


class SqueezeExcite:
    """The design space of "squeeze_excite": y = activation(x * gate(excite @ hidden(squeeze @ mean(x)))).

    inputs: x (N, C/b, H, W, b); weights: squeeze (S, C), squeeze_bias (S), excite (C, S), excite_bias (C), stored in
    x's type. Parameters: `SqueezeExciteParameters`::

        for point in SqueezeExcite().points(spec, features):
            kernel = SqueezeExcite().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        blocks = -(-spec.inputs[0].shape[1] // spec.inputs[0].block)
        return [{"groups": g} for g in dict.fromkeys(min(blocks, g) for g in (8, 2, 4, 32))]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        plan = _SqueezeExcite(spec, int(point["groups"]))
        function = build_prim_func([plan.x, *plan.weights, plan.y], plan.emit)
        return Kernel(function, plan.weights, plan.block_size(), plan.groups)


class _SqueezeExcite:
    """The code of the two passes; `emit` makes it."""

    # The operands' buffers, and the parts of the hidden layer by block; they exist while the code is emitted.
    X: Any
    squeeze: Any  # (C, S)
    squeeze_bias: Any
    excite: Any  # (C/b, S, b)
    excite_bias: Any
    Y: Any
    parts: Any  # (images, C/b, S)

    def __init__(self, spec: LayerSpec, groups: int) -> None:
        self.x, self.y = spec.inputs[0], spec.outputs[0]
        self.functions = spec.parameters_as(SqueezeExciteParameters)
        block = self.x.block
        self.groups, self.blocks = groups, -(-self.x.shape[1] // block)
        self.vectors = block // LANES  # of a block
        self.each = -(-self.blocks // groups)  # blocks of a task of the second pass
        squeeze = pad_axis(pad_axis(spec.weights["squeeze"].T, 0, block), 1, LANES)
        self.hidden: int = squeeze.shape[1]  # with what fills up vectors
        self.squeezed = len(spec.weights["squeeze"])  # without
        excite = pad_axis(spec.weights["excite"], 0, block).reshape(self.blocks, block, self.squeezed)
        to_storage = array_to_bf16 if self.x.dtype == "uint16" else np.ascontiguousarray
        self.weights = (
            to_storage(squeeze),
            pad_axis(spec.weights["squeeze_bias"], 0, LANES),
            to_storage(excite.transpose(0, 2, 1)),
            pad_axis(spec.weights["excite_bias"], 0, block),
        )

    def block_size(self) -> int:
        """Bytes of working set of a task of the second pass: its blocks and their weights."""
        planes = self.x.shape[2] * row_bytes(self.x) + self.x.shape[2] * row_bytes(self.y)
        return self.each * (planes + self.vectors * self.hidden * LANES * 4)

    def emit(self, X: Any, squeeze: Any, squeeze_bias: Any, excite: Any, excite_bias: Any, Y: Any) -> None:
        """The body of the function: a task for each image and block, then one for each image and group of blocks."""
        self.X, self.Y, self.squeeze, self.squeeze_bias = X, Y, squeeze, squeeze_bias
        self.excite, self.excite_bias = excite, excite_bias
        blocks, groups, each, images = self.blocks, self.groups, self.each, X.shape[0]
        self.parts = T.alloc_buffer((images, blocks, self.hidden), "float32", scope="global")
        with T.parallel(0, images * blocks) as task:
            self._emit_squeeze(T.bind(task // blocks), T.bind(task % blocks))
        with T.parallel(0, images * groups) as task:
            image, first = T.bind(task // groups), T.bind(task % groups * each)
            middle = self._emit_hidden(image)
            with T.serial(0, T.max(T.min(each, blocks - first), 0)) as b:
                self._emit_excite(image, first + b, middle)

    def _emit_squeeze(self, image: Expr, block: Expr) -> None:
        """The means of a block of channels and their part of the hidden layer."""
        means = T.alloc_buffer((self.x.block,), "float32", scope="local")
        emit_plane_means(self.x, self.X, image, block, means)
        sums = T.alloc_buffer((self.hidden // LANES,), "float32x16", scope="local")
        for h in range(0, self.hidden, LANES):
            T.buffer_store(sums, broadcast(0.0), [h // LANES])
        with T.serial(0, self.x.block) as lane:
            mean = T.bind(T.broadcast(means[lane], LANES))
            for h in range(0, self.hidden, LANES):
                tap = vector_load(self.squeeze, block * self.x.block + lane, h)
                T.buffer_store(sums, sums[h // LANES] + mean * tap, [h // LANES])
        for h in range(0, self.hidden, LANES):
            vector_store(self.parts, sums[h // LANES], image, block, h)

    def _emit_hidden(self, image: Expr) -> Any:
        """The hidden layer of an image, (S,), from its parts."""
        middle = T.alloc_buffer((self.hidden,), "float32", scope="local")
        sums = T.alloc_buffer((self.hidden // LANES,), "float32x16", scope="local")
        for h in range(0, self.hidden, LANES):
            T.buffer_store(sums, vector_load(self.squeeze_bias, h), [h // LANES])
        with T.serial(0, self.blocks) as part:
            for h in range(0, self.hidden, LANES):
                T.buffer_store(sums, sums[h // LANES] + vector_load(self.parts, image, part, h), [h // LANES])
        for h in range(0, self.hidden, LANES):
            vector_store(middle, apply_activation(sums[h // LANES], self.functions.hidden), h)
        return middle

    def _emit_excite(self, image: Expr, block: Expr, middle: Any) -> None:
        """The gates of a block of channels from the hidden layer, and their products."""
        vectors, (height, width) = self.vectors, self.x.shape[2:]
        gates = T.alloc_buffer((vectors,), "float32x16", scope="local")
        for v in range(vectors):
            T.buffer_store(gates, vector_load(self.excite_bias, (block * vectors + v) * LANES), [v])
        with T.serial(0, self.squeezed) as k:
            value = T.bind(T.broadcast(middle[k], LANES))
            for v in range(vectors):
                T.buffer_store(gates, gates[v] + value * vector_load(self.excite, block, k, v * LANES), [v])
        bound = [T.bind(apply_activation(gates[v], self.functions.gate)) for v in range(vectors)]
        with T.grid(height, width) as (row, column):
            for v, gate in enumerate(bound):
                value = vector_load(self.X, *blocked_index(self.x, image, block, row, column, v * LANES)) * gate
                where = blocked_index(self.y, image, block, row, column, v * LANES)
                vector_store(self.Y, apply_activation(value, self.functions.activation), *where)

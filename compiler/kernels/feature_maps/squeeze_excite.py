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
        x, y = spec.inputs[0], spec.outputs[0]
        _, channels, height, width = x.shape
        groups = int(point["groups"])
        blocks = -(-channels // x.block)
        vectors = x.block // LANES  # of a block
        each = -(-blocks // groups)
        squeeze = pad_axis(pad_axis(spec.weights["squeeze"].T, 0, x.block), 1, LANES)  # (C, S)
        hidden, squeezed = squeeze.shape[1], len(spec.weights["squeeze"])  # with and without what fills up vectors
        excite = pad_axis(spec.weights["excite"], 0, x.block).reshape(blocks, x.block, squeezed).transpose(0, 2, 1)
        to_storage = array_to_bf16 if x.dtype == "uint16" else np.ascontiguousarray
        squeeze_bias = pad_axis(spec.weights["squeeze_bias"], 0, LANES)
        excite_bias = pad_axis(spec.weights["excite_bias"], 0, x.block)
        weights = (to_storage(squeeze), squeeze_bias, to_storage(excite), excite_bias)
        functions = spec.parameters_as(SqueezeExciteParameters)

        def body(X: Any, W1: Any, B1: Any, W2: Any, B2: Any, Y: Any) -> None:
            n = X.shape[0]
            parts = T.alloc_buffer((n, blocks, hidden), "float32", scope="global")

            def emit_squeeze(image: Expr, block: Expr) -> None:
                """The means of a block of channels and their part of the hidden layer."""
                means = T.alloc_buffer((x.block,), "float32", scope="local")
                emit_plane_means(x, X, image, block, means)
                sums = T.alloc_buffer((hidden // LANES,), "float32x16", scope="local")
                for h in range(0, hidden, LANES):
                    T.buffer_store(sums, broadcast(0.0), [h // LANES])
                with T.serial(0, x.block) as lane:
                    mean = T.bind(T.broadcast(means[lane], LANES))
                    for h in range(0, hidden, LANES):
                        tap = vector_load(W1, block * x.block + lane, h)
                        T.buffer_store(sums, sums[h // LANES] + mean * tap, [h // LANES])
                for h in range(0, hidden, LANES):
                    vector_store(parts, sums[h // LANES], image, block, h)

            def emit_excite(image: Expr, block: Expr, middle: Any) -> None:
                """The gates of a block of channels from the hidden layer, and their products."""
                gates = T.alloc_buffer((vectors,), "float32x16", scope="local")
                for v in range(vectors):
                    T.buffer_store(gates, vector_load(B2, (block * vectors + v) * LANES), [v])
                with T.serial(0, squeezed) as k:
                    value = T.bind(T.broadcast(middle[k], LANES))
                    for v in range(vectors):
                        T.buffer_store(gates, gates[v] + value * vector_load(W2, block, k, v * LANES), [v])
                bound = [T.bind(apply_activation(gates[v], functions.gate)) for v in range(vectors)]
                with T.grid(height, width) as (row, column):
                    for v, gate in enumerate(bound):
                        value = vector_load(X, *blocked_index(x, image, block, row, column, v * LANES)) * gate
                        where = blocked_index(y, image, block, row, column, v * LANES)
                        vector_store(Y, apply_activation(value, functions.activation), *where)

            with T.parallel(0, n * blocks) as task:
                emit_squeeze(T.bind(task // blocks), T.bind(task % blocks))
            with T.parallel(0, n * groups) as task:
                image, first = T.bind(task // groups), T.bind(task % groups * each)
                middle = T.alloc_buffer((hidden,), "float32", scope="local")
                sums = T.alloc_buffer((hidden // LANES,), "float32x16", scope="local")
                for h in range(0, hidden, LANES):
                    T.buffer_store(sums, vector_load(B1, h), [h // LANES])
                with T.serial(0, blocks) as part:
                    for h in range(0, hidden, LANES):
                        T.buffer_store(sums, sums[h // LANES] + vector_load(parts, image, part, h), [h // LANES])
                for h in range(0, hidden, LANES):
                    vector_store(middle, apply_activation(sums[h // LANES], functions.hidden), h)
                with T.serial(0, T.max(T.min(each, blocks - first), 0)) as b:
                    emit_excite(image, first + b, middle)

        block_size = each * (height * row_bytes(x) + height * row_bytes(y) + vectors * hidden * LANES * 4)
        return Kernel(build_prim_func([x, *weights, y], body), weights, block_size, groups)

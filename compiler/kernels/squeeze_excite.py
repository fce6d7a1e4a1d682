"""Squeeze-and-excite (Hu et al. 2018) as one layer: each channel is scaled by what all channels' means say of it.

Two passes over the tensor, each in parallel: the first takes the mean of a block of channels and that block's part of
the hidden layer; the second adds the parts up, makes the gates of its own channels and scales them, which are in the
cache still where the tensor is small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.ir import Kernel, LayerSpec, Point
from veltair.compiler.kernels.emit import LANES, Expr, activate, load, pad_to, primitive, splat, store
from veltair.compiler.kernels.spatial import inside, mean_of_plane, row_bytes


class SqueezeExcite:
    """inputs: x (N, C/b, H, W, b); weights: squeeze (S, C), squeeze_bias (S), excite (C, S), excite_bias (C).

    y = activation(x * gate(excite @ hidden(squeeze @ mean(x)))), the attributes being activation functions.
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
        squeeze = np.ascontiguousarray(pad_to(pad_to(spec.weights["squeeze"].T, 0, x.block), 1, LANES))
        hidden = squeeze.shape[1]
        excite = pad_to(pad_to(spec.weights["excite"], 0, x.block), 1, LANES)
        excite = np.ascontiguousarray(excite.reshape(-1, LANES, hidden).transpose(0, 2, 1))  # (C/16, S, 16)
        weights = (
            squeeze, pad_to(spec.weights["squeeze_bias"], 0, LANES),
            excite, pad_to(spec.weights["excite_bias"], 0, x.block),
        )  # fmt: skip
        functions = {name: str(spec.attributes[name]) for name in ("hidden", "gate", "activation")}

        def body(X: Any, W1: Any, B1: Any, W2: Any, B2: Any, Y: Any) -> None:
            n = X.shape[0]
            parts = T.alloc_buffer((n, blocks * vectors, hidden), "float32", scope="global")

            def squeezed(image: Expr, block: Expr) -> None:
                means = T.alloc_buffer((LANES,), "float32", scope="local")
                for v in range(vectors):
                    store(means, mean_of_plane(x, X, image, block, v * LANES), 0)
                    for h in range(0, hidden, LANES):
                        value = splat(0.0)
                        for lane in range(LANES):
                            tap = load(W1, block * x.block + v * LANES + lane, h)
                            value = T.bind(value + T.broadcast(means[lane], LANES) * tap)
                        store(parts, value, image, block * vectors + v, h)

            def excited(image: Expr, block: Expr, middle: Any) -> None:
                for v in range(vectors):
                    total = T.alloc_buffer((1,), "float32x16", scope="local")
                    T.buffer_store(total, load(B2, (block * vectors + v) * LANES), [0])
                    with T.serial(0, hidden) as k:
                        tap = load(W2, block * vectors + v, k, 0)
                        T.buffer_store(total, total[0] + T.broadcast(middle[k], LANES) * tap, [0])
                    gate = T.bind(activate(total[0], functions["gate"]))
                    with T.grid(height, width) as (row, column):
                        value = load(X, *inside(x, image, block, row, column, v * LANES)) * gate
                        where = inside(y, image, block, row, column, v * LANES)
                        store(Y, activate(value, functions["activation"]), *where)

            with T.parallel(0, n * blocks) as task:
                squeezed(T.bind(task // blocks), T.bind(task % blocks))
            with T.parallel(0, n * groups) as task:
                image, first = T.bind(task // groups), T.bind(task % groups * each)
                middle = T.alloc_buffer((hidden,), "float32", scope="local")
                sums = T.alloc_buffer((hidden // LANES,), "float32x16", scope="local")
                for h in range(0, hidden, LANES):
                    T.buffer_store(sums, load(B1, h), [h // LANES])
                with T.serial(0, blocks * vectors) as part:
                    for h in range(0, hidden, LANES):
                        T.buffer_store(sums, sums[h // LANES] + load(parts, image, part, h), [h // LANES])
                for h in range(0, hidden, LANES):
                    store(middle, activate(sums[h // LANES], functions["hidden"]), h)
                with T.serial(0, T.max(T.min(each, blocks - first), 0)) as b:
                    excited(image, first + b, middle)

        block_size = each * (height * row_bytes(x) + height * row_bytes(y) + vectors * hidden * LANES * 4)
        return Kernel(primitive([x, *weights, y], body), weights, block_size, groups)

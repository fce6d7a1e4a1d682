"""Winograd's minimal filtering for 3x3 convolutions of stride 1, F(m x m, 3 x 3) for m = 2 and 4, in fp32.

Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks" (2015), sec. 4: an output tile of m x m takes
(m + 2)^2 products for each pair of channels instead of 9 m^2: 2.25 times fewer at m = 2, 4 times at m = 4, against
weights that are 1.8 and 4 times larger and roundings that grow with m.

A task takes `tiles` output tiles and a share of the output channels: it transforms the inputs of its tiles into a
scratch about the size of L2, then for each group of output channels multiplies for each of the (m + 2)^2 places
(tiles x IC) by (IC x group) and transforms back. The weights are packed in the order of their use and prefetched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.codegen.activation import apply_activation
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import prefetch, vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast, ramp
from veltair.compiler.kernels.codegen.weight_packing import pad_axis
from veltair.compiler.kernels.conv.conv2d_direct import UNROLL, register_tile, registers_each
from veltair.compiler.kernels.conv.conv_geometry import balanced, first_tap, geometry, group_sizes, where_present

# Of transformed inputs; twice L2 still pays, since each task reads all transformed weights of its output channels.
SCRATCH_BYTES = 4 << 20
WEIGHT_BYTES = 64 << 20  # of transformed weights of one layer; beyond, they take more memory than they are worth
# Transforms of weights (Lavin & Gray sec. 4.1 and 4.3); those of inputs and outputs are `_forward` and `_inverse`.
WEIGHTS = {
    2: np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
    4: np.array(
        [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]],
    ) / 24,
}  # fmt: skip


def points(spec: LayerSpec, features: frozenset[str]) -> list[Point]:
    """None where the convolution is of another kind, or too small to gain."""
    oh, ow, kh, kw, sh, sw, dh, dw = geometry(spec)
    if (kh, kw, sh, sw, dh, dw) != (3, 3, 1, 1, 1, 1) or spec.inputs[0].block != LANES or min(oh, ow) < 4:
        return []
    blocks = -(-spec.outputs[0].shape[1] // LANES)
    (channels,) = group_sizes(blocks, [c for c in (4, 2, 3, 1) if register_tile(c, features) > 2], 1)
    groups = -(-blocks // channels)
    found: list[Point] = []
    for m in sorted(WEIGHTS, key=lambda m: cycles(spec, m, features)):
        count = -(-oh // m) * -(-ow // m)
        row_bytes = (m + 2) ** 2 * -(-spec.inputs[0].shape[1] // LANES) * LANES * 4  # for one tile or output channel
        if row_bytes * blocks * LANES > WEIGHT_BYTES:
            continue
        most = SCRATCH_BYTES // row_bytes
        for chunks in sorted({-(-count // min(t, max(most, 14))) for t in (14, 28, 56)}):
            splits = [s for s in (1, 2, 4) if groups % s == 0 and (s == 1 or chunks < 8)]
            for s in sorted(splits, key=lambda s: (s * chunks < 2, s)):
                point: Point = {"algorithm": "winograd", "m": m, "tiles": -(-count // chunks)}
                found.append(point | {"channels": channels, "splits": s})
    return found


def cycles(spec: LayerSpec, m: int, features: frozenset[str]) -> float:
    """Estimated, for each pair of input and output channels; m = 1 is direct convolution."""
    oh, ow, *_ = geometry(spec)
    each = registers_each(features)
    products = -(-oh // m) * -(-ow // m) * (m + 2) ** 2 * each / 32  # a cycle makes 32, or 16 in AVX2
    # Transforms; weights come at 8 bytes a cycle, at 4 in the panels of AVX2, which are narrower.
    return products * (1.45 if m > 1 else 1.1) + (m + 2) ** 2 * each / 2


def build(spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
    x, y = spec.inputs[0], spec.outputs[0]
    m, tiles, channels, splits = (int(point[key]) for key in ("m", "tiles", "channels", "splits"))
    oh, ow, *_ = geometry(spec)
    side, width = m + 2, channels * LANES
    across = -(-ow // m)
    count = -(-oh // m) * across
    chunks, blocks, outs = -(-count // tiles), -(-x.shape[1] // LANES), -(-y.shape[1] // LANES)
    groups = -(-outs // channels)
    share = groups // splits
    top, left = first_tap(spec)
    bottom, right = x.physical[2] - 1, x.physical[3] - 1
    activation = spec.parameters_as(Conv2dParameters).activation
    packed = _pack(spec.weights["weight"], m, width, blocks)
    bias = pad_axis(spec.weights["bias"], 0, width)
    parts = balanced(tiles, register_tile(channels, features))
    turns = sum(many for _, many, _ in parts)
    lines = -(-LANES * channels // turns)  # of the next place's weights, to be fetched at one step of one part

    def body(X: Any, *rest: Any) -> None:
        residual = rest[0] if len(spec.inputs) > 1 else None
        W, bias_, Y = rest[-3:]

        def forward(V: Any, image: Expr, tile: Expr, slot: Expr) -> None:
            """Transform the inputs of one tile; what reaches past the tensor repeats its last row or column."""
            rows = [T.bind(T.min(tile // across * m + top + i, bottom)) for i in range(side)]
            columns = [T.bind(T.min(tile % across * m + left + j, right)) for j in range(side)]
            with T.serial(0, blocks) as b:
                half = [
                    _bound(_forward([vector_load(X, image, b, row, column, 0) for row in rows])) for column in columns
                ]
                for i in range(side):
                    for j, value in enumerate(_forward([half[column][i] for column in range(side)])):
                        T.buffer_store(V, value, [i * side + j, b, slot, ramp(0)])

        def multiply(acc: Any, V: Any, M: Any, group: Expr, place: Expr, first: Expr, size: int, turn: Expr) -> None:
            """`size` tiles from `first` on, at one of the places."""
            for register in range(size * channels):
                T.buffer_store(acc, broadcast(0.0), [register])
            with T.serial(0, blocks) as b:
                for line in range(lines):
                    at = ((turn * blocks + b) * lines + line) * LANES
                    prefetch(W[group * side * side + place + 1, at])
                with T.serial(0, LANES // UNROLL) as k:
                    for i in range(UNROLL):
                        at = (b * LANES + k * UNROLL + i) * width
                        row = group * side * side + place
                        taps = [T.bind(W[row, ramp(at + c * LANES)]) for c in range(channels)]
                        for p in range(size):
                            value = T.bind(T.broadcast(V[place, b, first + p, k * UNROLL + i], LANES))
                            for c in range(channels):
                                at = p * channels + c
                                T.buffer_store(acc, acc[at] + value * taps[c], [at])
            for p in range(size):
                for c in range(channels):
                    T.buffer_store(M, acc[p * channels + c], [place, first + p, ramp(c * LANES)])

        def inverse(M: Any, image: Expr, tile: Expr, slot: Expr, block: Expr, lane: int) -> None:
            """The outputs of one tile and block of channels."""
            row, column = T.bind(tile // across * m), T.bind(tile % across * m)
            half = [_bound(_inverse([M[i * side + j, slot, ramp(lane)] for i in range(side)])) for j in range(side)]
            start = T.bind(vector_load(bias_, block * LANES))
            for i in range(m):
                for j, value in enumerate(_bound(_inverse([half[k][i] for k in range(side)]))):
                    with when(T.And(row + i < oh, column + j < ow)):
                        result = value + start
                        if residual is not None:
                            halo = spec.inputs[1].halo
                            at = (row + i + halo.top, column + j + halo.left)
                            result = result + vector_load(residual, image, block, *at, 0)
                        at = (row + i + y.halo.top, column + j + y.halo.left)
                        vector_store(Y, apply_activation(result, activation), image, block, *at, 0)

        with T.parallel(0, X.shape[0] * chunks * splits) as task:
            V = T.alloc_buffer((side * side, blocks, tiles, LANES), "float32", scope="global")
            M = T.alloc_buffer((side * side, tiles, width), "float32", scope="global")
            acc = T.alloc_buffer((parts[0][2] * channels,), "float32x16", scope="local")
            image = T.bind(task // (chunks * splits))
            split = T.bind(task // chunks % splits)
            origin = T.bind(task % chunks * tiles)
            present = T.bind(T.min(tiles, count - origin))
            with T.serial(0, tiles) as t:  # slots of a last chunk that is not full repeat its last tile
                forward(V, image, T.bind(T.min(origin + t, count - 1)), t)
            with T.serial(0, share) as g:
                group = T.bind(split * share + g)
                with T.serial(0, side * side) as place:
                    done = 0
                    for start, many, size in parts:
                        with T.serial(0, many) as t:
                            multiply(acc, V, M, group, place, start + t * size, size, done + t)
                        done += many
                with T.serial(0, present) as t:
                    for c in range(channels):
                        with where_present(outs, channels, group, c):
                            inverse(M, image, origin + t, t, group * channels + c, c * LANES)

    function = build_prim_func([*spec.inputs, packed, bias, *spec.outputs], body)
    block_size = packed.nbytes // splits + side * side * tiles * (blocks * LANES + width) * 4
    return Kernel(function, (packed, bias), block_size, chunks * splits * parts[0][2] * channels)


def _bound(values: list[Expr]) -> list[Expr]:
    return [T.bind(value) for value in values]


def _forward(d: list[Expr]) -> list[Expr]:
    """B^T d of one row or column."""
    if len(d) == 4:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
    d = _bound(d)
    a, b = _bound([d[4] - d[2] * broadcast(4.0), d[3] - d[1] * broadcast(4.0)])
    c, e = _bound([d[4] - d[2], (d[3] - d[1]) * broadcast(2.0)])
    first, last = (d[i] * broadcast(4.0) - d[i + 2] * broadcast(5.0) + d[i + 4] for i in (0, 1))
    return [first, a + b, a - b, c + e, c - e, last]


def _inverse(m: list[Expr]) -> list[Expr]:
    """A^T m of one row or column."""
    if len(m) == 4:
        return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]
    a, b, c, d = _bound([m[1] + m[2], m[1] - m[2], m[3] + m[4], m[3] - m[4]])
    return [m[0] + a + c, b + d * broadcast(2.0), a + c * broadcast(4.0), b + d * broadcast(8.0) + m[5]]


def _pack(weight: NDArray[np.float32], m: int, width: int, blocks: int) -> NDArray[np.float32]:
    """G g G^T as (OC/width * (m + 2)^2, IC * width): a row is what one place of one group takes."""
    padded = pad_axis(pad_axis(weight, 0, width), 1, LANES).astype(np.float64)
    oc, ic = padded.shape[:2]
    turned = np.einsum("iu,ocuv,jv->oijc", WEIGHTS[m], padded, WEIGHTS[m], optimize=True)
    rows = turned.reshape(oc // width, width, (m + 2) ** 2, ic).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(rows, np.float32).reshape(-1, ic * width)

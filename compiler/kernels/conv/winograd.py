"""Winograd's minimal filtering for 3x3 convolutions of stride 1, F(m x m, 3 x 3) for m = 2 and 4, in fp32.

Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks" (2015), sec. 4: an output tile of m x m takes
(m + 2)^2 products for each pair of channels instead of 9 m^2: 2.25 times fewer at m = 2, 4 times at m = 4, against
weights that are 1.8 and 4 times larger and roundings that grow with m.

A task takes `tiles` output tiles and a share of the output channels: it transforms the inputs of its tiles into a
scratch about the size of L2, then for each group of output channels multiplies for each of the (m + 2)^2 places
(tiles x IC) by (IC x group) and transforms back. The weights are packed in the order of their use and prefetched.

A dilated convolution is as many convolutions as it skips pixels in both directions, each of every nth row and column:
the outputs of a tile lie as far apart as the taps.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import prefetch, vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters, window_share
from veltair.compiler.kernels.conv.conv_algorithm import ConvAlgorithm
from veltair.compiler.kernels.conv.conv_geometry import (
    ConvGeometry,
    RowsColumns,
    balanced_parts,
    fitting_group_sizes,
    live_share,
    skips_padding,
    where_present,
)
from veltair.compiler.kernels.conv.register_tiles import UNROLL, max_tile_outputs, registers_per_vector

# Bytes of transformed inputs; twice L2 still pays, since each task reads all transformed weights of its channels.
MAX_SCRATCH_BYTES = 4 << 20
MAX_WEIGHT_BYTES = 64 << 20  # transformed, of one layer; beyond, they take more memory than they are worth
# G of F(m x m, 3 x 3), which transforms weights (Lavin & Gray sec. 4.1 and 4.3).
WEIGHT_TRANSFORMS = {
    2: np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
    4: np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24,
}


def points(spec: LayerSpec, features: frozenset[str]) -> list[Point]:
    """m: outputs along a side of a tile; tiles: output tiles of a task; channels: vectors of a group of output
    channels; splits: shares of the output channels.

    There are no points where the convolution is of another kind, or too small to gain.
    """
    geometry, one = ConvGeometry.of_layer(spec), RowsColumns(1, 1)
    oh, ow = geometry.output
    fits = geometry.kernel == (3, 3) and geometry.stride == one
    if not fits or spec.inputs[0].block != LANES or min(oh, ow) < 4:
        return []
    blocks = -(-spec.outputs[0].shape[1] // LANES)
    sizes = [c for c in (4, 2, 3, 1) if max_tile_outputs(c, features) > 2]
    (channels,) = fitting_group_sizes(blocks, sizes, 1)
    groups = -(-blocks // channels)
    found: list[Point] = []
    for m in sorted(WEIGHT_TRANSFORMS, key=lambda m: estimated_cycles(spec, m, features)):
        count = math.prod(_tile_grid(geometry, m))
        row_bytes = (m + 2) ** 2 * -(-spec.inputs[0].shape[1] // LANES) * LANES * 4  # for one tile or output channel
        if row_bytes * blocks * LANES > MAX_WEIGHT_BYTES:
            continue
        most = MAX_SCRATCH_BYTES // row_bytes
        for chunks in sorted({-(-count // min(t, max(most, 14))) for t in (14, 28, 56)}):
            splits = [s for s in (1, 2, 4) if groups % s == 0 and (s == 1 or chunks < 8)]
            for s in sorted(splits, key=lambda s: (s * chunks < 2, s)):
                point: Point = {"algorithm": ConvAlgorithm.WINOGRAD.value, "m": m, "tiles": -(-count // chunks)}
                found.append(point | {"channels": channels, "splits": s})
    return found


def estimated_cycles(spec: LayerSpec, m: int, features: frozenset[str]) -> float:
    """Cycles for each pair of an input and an output channel; m = 1 is direct convolution."""
    geometry, each = ConvGeometry.of_layer(spec), registers_per_vector(features)
    places = (m + 2) ** 2 * math.prod(_tile_grid(geometry, m) if m > 1 else geometry.output)
    conv = spec.parameters_as(Conv2dParameters)
    read = 1.0
    if m == 1:
        read = window_share(conv.windows, conv.kernel) * (live_share(spec) if skips_padding(spec) else 1.0)
    products = places * read * each / 32  # a cycle makes 32, or 16 in AVX2
    # Transforms; weights come at 8 bytes a cycle, at 4 in the panels of AVX2, which are narrower.
    return products * (1.45 if m > 1 else 1.1) + (m + 2) ** 2 * each / 2


def _tile_grid(geometry: ConvGeometry, m: int) -> RowsColumns:
    """Rows and columns of tiles, of all the convolutions that a dilated one is."""
    rows, columns = (
        step * -(-extent // (step * m)) for step, extent in zip(geometry.dilation, geometry.output, strict=True)
    )
    return RowsColumns(rows, columns)


def build(spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
    """The kernel of one of `points`."""
    plan = _WinogradConvolution(spec, point, features)
    function = build_prim_func([*spec.inputs, plan.weight, plan.bias, *spec.outputs], plan.emit)
    parallelism = plan.chunks * plan.splits * plan.parts[0][2] * plan.channels
    return Kernel(function, (plan.weight, plan.bias), plan.block_size(), parallelism)


class _WinogradConvolution:
    """The code of a Winograd convolution; `emit` makes it, one method for each phase.

    V holds the transformed inputs (places, IC/16, tiles, 16), M their products (places, tiles, group's channels).
    """

    # The operands' buffers and the scratch; they exist while the code is emitted.
    X: Any
    W: Any
    bias_buffer: Any
    residual: Any | None
    Y: Any
    V: Any
    M: Any
    accumulators: Any

    def __init__(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> None:
        self.spec, self.x, self.y = spec, spec.inputs[0], spec.outputs[0]
        self.activation = spec.parameters_as(Conv2dParameters).activation
        self.geometry = ConvGeometry.of_layer(spec)
        self.m, self.tiles, self.channels, self.splits = (
            int(point[key]) for key in ("m", "tiles", "channels", "splits")
        )
        self.side, self.width = self.m + 2, self.channels * LANES  # of an input tile; of a group of output channels
        grid = _tile_grid(self.geometry, self.m)
        self.tiles_across, self.tile_count = grid.columns, math.prod(grid)
        self.chunks = -(-self.tile_count // self.tiles)
        self.blocks, self.output_blocks = -(-self.x.shape[1] // LANES), -(-self.y.shape[1] // LANES)
        self.groups_per_split = -(-self.output_blocks // self.channels) // self.splits
        self.weight = _pack(spec.weights["weight"], self.m, self.width)
        self.bias = pad_axis(spec.weights["bias"], 0, self.width)
        self.parts = balanced_parts(self.tiles, max_tile_outputs(self.channels, features))
        parts = sum(count for _, count, _ in self.parts)
        # Lines of the next place's weights that one step of one part prefetches.
        self.prefetched_lines = -(-LANES * self.channels // parts)

    def block_size(self) -> int:
        """Bytes of working set of a task: its share of the weights, and its scratch."""
        scratch = self.side**2 * self.tiles * (self.blocks * LANES + self.width) * 4
        return int(self.weight.nbytes // self.splits + scratch)

    def emit(self, X: Any, *rest: Any) -> None:
        """The body of the function: one task for each image, share of the output channels and chunk of tiles."""
        self.X, (self.W, self.bias_buffer, self.Y) = X, rest[-3:]
        self.residual = rest[0] if len(self.spec.inputs) > 1 else None
        places, chunks, splits = self.side * self.side, self.chunks, self.splits
        with T.parallel(0, X.shape[0] * chunks * splits) as task:
            self.V = T.alloc_buffer((places, self.blocks, self.tiles, LANES), "float32", scope="global")
            self.M = T.alloc_buffer((places, self.tiles, self.width), "float32", scope="global")
            self.accumulators = T.alloc_buffer((self.parts[0][2] * self.channels,), "float32x16", scope="local")
            image = T.bind(task // (chunks * splits))
            split = T.bind(task // chunks % splits)
            origin = T.bind(task % chunks * self.tiles)
            present = T.bind(T.min(self.tiles, self.tile_count - origin))
            with T.serial(0, self.tiles) as t:  # slots of a last chunk that is not full repeat its last tile
                self._transform_inputs(image, T.bind(T.min(origin + t, self.tile_count - 1)), t)
            with T.serial(0, self.groups_per_split) as g:
                group = T.bind(split * self.groups_per_split + g)
                self._multiply_places(group)
                with T.serial(0, present) as t:
                    for c in range(self.channels):
                        with where_present(self.output_blocks, self.channels, group, c):
                            self._transform_outputs(image, origin + t, t, group * self.channels + c, c * LANES)

    def _transform_inputs(self, image: Expr, tile: Expr, slot: Expr) -> None:
        """Transform the inputs of one tile; what reaches past the tensor repeats its last row or column."""
        side, bottom, right = self.side, self.x.physical[2] - 1, self.x.physical[3] - 1
        (row, column), (down, across) = self._first_output(tile), self.geometry.dilation
        top, left = row + self.geometry.first_tap.rows, column + self.geometry.first_tap.columns
        rows = [T.bind(T.min(top + i * down, bottom)) for i in range(side)]
        columns = [T.bind(T.min(left + j * across, right)) for j in range(side)]
        with T.serial(0, self.blocks) as b:
            half = [
                _bind_all(_transform_input_line([vector_load(self.X, image, b, row, column, 0) for row in rows]))
                for column in columns
            ]
            for i in range(side):
                line = _transform_input_line([half[column][i] for column in range(side)])
                for j, value in enumerate(line):
                    T.buffer_store(self.V, value, [i * side + j, b, slot, ramp(0)])

    def _first_output(self, tile: Expr) -> tuple[Expr, Expr]:
        """Where the outputs of a tile begin; they lie as far apart as the taps."""
        places = tile // self.tiles_across, tile % self.tiles_across
        row, column = (
            place * self.m if step == 1 else place // step * (step * self.m) + place % step
            for place, step in zip(places, self.geometry.dilation, strict=True)
        )
        return row, column

    def _multiply_places(self, group: Expr) -> None:
        """The products of all tiles with a group's weights, place by place, in parts that fit the registers."""
        with T.serial(0, self.side * self.side) as place:
            done = 0
            for start, count, size in self.parts:
                with T.serial(0, count) as t:
                    self._multiply(group, place, start + t * size, size, done + t)
                done += count

    def _multiply(self, group: Expr, place: Expr, first: Expr, size: int, turn: Expr) -> None:
        """`size` tiles from `first` on, at one of the places; the `turn`-th part of the place."""
        acc, channels = self.accumulators, self.channels
        row = group * self.side * self.side + place
        for register in range(size * channels):
            T.buffer_store(acc, broadcast(0.0), [register])
        with T.serial(0, self.blocks) as b:
            for line in range(self.prefetched_lines):
                prefetch(self.W[row + 1, ((turn * self.blocks + b) * self.prefetched_lines + line) * LANES])
            with T.serial(0, LANES // UNROLL) as k:
                for i in range(UNROLL):
                    at = (b * LANES + k * UNROLL + i) * self.width
                    weights = [T.bind(self.W[row, ramp(at + c * LANES)]) for c in range(channels)]
                    for p in range(size):
                        value = T.bind(T.broadcast(self.V[place, b, first + p, k * UNROLL + i], LANES))
                        for c in range(channels):
                            register = p * channels + c
                            T.buffer_store(acc, acc[register] + value * weights[c], [register])
        for p in range(size):
            for c in range(channels):
                T.buffer_store(self.M, acc[p * channels + c], [place, first + p, ramp(c * LANES)])

    def _transform_outputs(self, image: Expr, tile: Expr, slot: Expr, block: Expr, lane: int) -> None:
        """Transform the products of one tile and block of channels back to outputs, and finish these."""
        (oh, ow), side, m = self.geometry.output, self.side, self.m
        (row, column), (down, across) = map(T.bind, self._first_output(tile)), self.geometry.dilation
        half = [
            _bind_all(_transform_output_line([self.M[i * side + j, slot, ramp(lane)] for i in range(side)]))
            for j in range(side)
        ]
        start = T.bind(vector_load(self.bias_buffer, block * LANES))
        for i in range(m):
            line = _bind_all(_transform_output_line([half[k][i] for k in range(side)]))
            for j, value in enumerate(line):
                at = (row + i * down, column + j * across)
                with when(T.And(at[0] < oh, at[1] < ow)):
                    self._finish_output(image, block, *at, value + start)

    def _finish_output(self, image: Expr, block: Expr, row: Expr, column: Expr, result: Expr) -> None:
        """The epilogue of 16 channels of an output: residual, activation, and store."""
        if self.residual is not None:
            halo = self.spec.inputs[1].halo
            at = (row + halo.top, column + halo.left)
            result = result + vector_load(self.residual, image, block, *at, 0)
        at = (row + self.y.halo.top, column + self.y.halo.left)
        vector_store(self.Y, apply_activation(result, self.activation), image, block, *at, 0)


def _bind_all(values: list[Expr]) -> list[Expr]:
    return [T.bind(value) for value in values]


def _transform_input_line(d: list[Expr]) -> list[Expr]:
    """B^T d of one row or column."""
    if len(d) == 4:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
    d = _bind_all(d)
    a, b = _bind_all([d[4] - d[2] * broadcast(4.0), d[3] - d[1] * broadcast(4.0)])
    c, e = _bind_all([d[4] - d[2], (d[3] - d[1]) * broadcast(2.0)])
    first, last = (d[i] * broadcast(4.0) - d[i + 2] * broadcast(5.0) + d[i + 4] for i in (0, 1))
    return [first, a + b, a - b, c + e, c - e, last]


def _transform_output_line(m: list[Expr]) -> list[Expr]:
    """A^T m of one row or column."""
    if len(m) == 4:
        return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]
    a, b, c, d = _bind_all([m[1] + m[2], m[1] - m[2], m[3] + m[4], m[3] - m[4]])
    return [m[0] + a + c, b + d * broadcast(2.0), a + c * broadcast(4.0), b + d * broadcast(8.0) + m[5]]


def _pack(weight: NDArray[np.float32], m: int, width: int) -> NDArray[np.float32]:
    """G g G^T as (OC/width * (m + 2)^2, IC * width): a row is what one place of one group takes."""
    padded = pad_axis(pad_axis(weight, 0, width), 1, LANES).astype(np.float64)
    oc, ic = padded.shape[:2]
    transform = WEIGHT_TRANSFORMS[m]
    transformed = np.einsum("iu,ocuv,jv->oijc", transform, padded, transform, optimize=True)
    rows = transformed.reshape(oc // width, width, (m + 2) ** 2, ic).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(rows, np.float32).reshape(-1, ic * width)

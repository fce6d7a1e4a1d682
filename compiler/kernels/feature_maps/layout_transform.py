"""Kernels that only change a tensor's layout: row-major fp32 (N, C, H, W) or (N, H, W, C), and channel blocks.

16 channels of 16 pixels are transposed in registers. A plane without halo is taken as one long row, so that small
planes too have 16 neighbours; the last tile of a row overlaps the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.transpose import interleave_channels, transpose_16x16
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp
from veltair.compiler.graph.layer_spec import Activation, Halo, Kernel, LayerSpec, Point
from veltair.compiler.kernels.feature_maps.blocked_planes import blocked_index, row_bytes, row_points, row_tasks

CHANNELS = 64  # that one instruction or a few copy


class ToBlocked:
    """The design space of "to_blocked", from row-major fp32 (N, C, H, W) to channel blocks.

    Channels that fill up the last block are zero::

        for point in ToBlocked().points(spec, features):
            kernel = ToBlocked().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(_plane_rows(spec.outputs[0])[0])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        block = y.block

        def tile(X: Any, Y: Any, image: Expr, b: Expr, count: int, row: Expr, column: Expr, size: int) -> None:
            """`size` pixels (16, or 1) of the `count` channels of a block."""
            if size == 1:
                for c in range(block):
                    value = X[image, b * block + c, row, column] if c < count else T.float32(0)
                    vector_store(Y, value, *blocked_index(y, image, b, row, column, c), count=1)
                return
            taken = [T.bind(vector_load(X, image, b * block + c, row, column)) for c in range(count)]
            taken += [broadcast(0.0)] * (block - count)
            if block < LANES:  # the pixels' few channels side by side
                for j, value in enumerate(interleave_channels(taken)):
                    vector_store(Y, value, *blocked_index(y, image, b, row, column, j * LANES))
            for first in range(0, block - block % LANES, LANES):
                for pixel, value in enumerate(transpose_16x16(taken[first : first + LANES])):
                    vector_store(Y, value, *blocked_index(y, image, b, row, column + pixel, first))

        return _build_by_tiles(x, y, y, int(point["rows"]), tile)


class ToPlain:
    """The design space of "to_plain", from channel blocks to row-major fp32 (N, C, H, W)::

    for point in ToPlain().points(spec, features):
        kernel = ToPlain().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(_plane_rows(spec.inputs[0])[0])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        block = x.block

        def tile(X: Any, Y: Any, image: Expr, b: Expr, count: int, row: Expr, column: Expr, size: int) -> None:
            for first in range(0, count, LANES):
                where = [blocked_index(x, image, b, row, column + i, first) for i in range(size)]
                pixels = [T.bind(vector_load(X, *index)) for index in where]
                here = min(LANES, count - first)
                if size == 1:
                    for c in range(here):
                        value = T.Shuffle(pixels, [T.int32(c)])
                        T.buffer_store(Y, value, [image, b * block + first + c, row, column])
                    continue
                for c, value in enumerate(transpose_16x16(pixels)[:here]):
                    vector_store(Y, value, image, b * block + first + c, row, column)

        return _build_by_tiles(x, y, x, int(point["rows"]), tile)


class ChannelsLast:
    """The design space of "channels_last", from channel blocks to row-major fp32 (N, H, W, C).

    Detection heads end with it: their last axis is a box's numbers::

        for point in ChannelsLast().points(spec, features):
            kernel = ChannelsLast().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(spec.inputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        _, channels, height, width = x.shape
        rows = int(point["rows"])
        chunks = -(-height // rows)
        vectors, rest = divmod(channels, LANES)
        each = x.block // LANES  # vectors of a block

        def body(X: Any, Y: Any) -> None:
            with row_tasks(X, 1, chunks, rows, height) as (image, _, row), T.serial(0, width) as column:

                def load_vector(vector: Expr) -> Expr:
                    return vector_load(X, *blocked_index(x, image, vector // each, row, column, vector % each * LANES))

                with T.serial(0, vectors) as v:
                    vector_store(Y, load_vector(v), image, row, column, v * LANES)
                if rest:
                    value = T.bind(load_vector(vectors))
                    for lane in range(rest):
                        one = T.Shuffle([value], [T.int32(lane)])
                        T.buffer_store(Y, one, [image, row, column, vectors * LANES + lane])

        function = build_prim_func([x, y], body, unaligned=[y])  # it may be a slice of all heads' rows
        return Kernel(function, (), rows * width * channels * 4 * 2, chunks)


class ChannelsFirst:
    """The design space of "channels_first", from row-major (N, H, W, C) to channel blocks, of 16 n channels.

    Tokens of a transformer become an image with it. Channels that fill up the last block are zero::

        for point in ChannelsFirst().points(spec, features):
            kernel = ChannelsFirst().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        _, channels, height, width = y.shape
        rows = int(point["rows"])
        chunks, each = -(-height // rows), y.block // LANES  # vectors of a block

        def body(X: Any, Y: Any) -> None:
            with row_tasks(X, 1, chunks, rows, height) as (image, _, row):
                with T.grid(channels // LANES, width) as (v, column):
                    value = vector_load(X, image, row, column, v * LANES)
                    vector_store(Y, value, *blocked_index(y, image, v // each, row, column, v % each * LANES))
                if channels % y.block:
                    with T.serial(0, width) as column:
                        at = blocked_index(y, image, channels // y.block, row, column, channels % y.block)
                        vector_store(Y, broadcast(0.0), *at)

        return Kernel(build_prim_func([x, y], body), (), rows * width * channels * 4 * 2, chunks)


class DepthToSpace:
    """The design space of "depth_to_space", between channel blocks (N, s * s * C, H, W) and (N, C, s * H, s * W).

    Channel (s * i + j) * C + c of a pixel becomes channel c of pixel (i, j) of s x s. C fills whole blocks, or both
    tensors have one block of all their channels. Rows and columns beyond the output are left out::

        for point in DepthToSpace().points(spec, features):
            kernel = DepthToSpace().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        size, blocks = math.isqrt(x.shape[1] // y.shape[1]), y.shape[1] // y.block
        height, width = y.shape[2:]
        rows = int(point["rows"])
        chunks = -(-height // rows)

        def body(X: Any, Y: Any) -> None:
            with row_tasks(X, blocks, chunks, rows, height) as (image, b, row):
                for j in range(min(size, width)):
                    channel = T.bind(((row % size * size + j) * blocks + b) * y.block)
                    with T.serial(0, -(-(width - j) // size)) as column:
                        for first in range(0, y.block, CHANNELS):
                            count = min(CHANNELS, y.block - first)  # as they are, of whatever type
                            lanes = ramp(channel % x.block + first, count)
                            value = X[blocked_index(x, image, channel // x.block, row // size, column, lanes)]
                            target = blocked_index(y, image, b, row, column * size + j, ramp(first, count))
                            T.buffer_store(Y, value, list(target))

        return Kernel(build_prim_func([x, y], body), (), 2 * rows * row_bytes(y), blocks * chunks)


class Copy:
    """The design space of "copy", of a row-major tensor as it is::

    for point in Copy().points(spec, features):
        kernel = Copy().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        def body(X: Any, Y: Any) -> None:
            with T.grid(*X.shape) as index:
                where = list(index) if len(X.shape) > 1 else [index]
                T.buffer_store(Y, X[tuple(where)], where)

        return Kernel(build_prim_func([*spec.inputs, *spec.outputs], body), (), 0, 1)


def _plane_rows(blocked: Activation) -> tuple[int, int]:
    """Rows and columns; one long row where no halo lies between the rows."""
    _, _, height, width = blocked.shape
    return (1, height * width) if blocked.halo == Halo() and width % LANES else (height, width)


def _build_by_tiles(x: Activation, y: Activation, blocked: Activation, rows: int, tile: Callable[..., None]) -> Kernel:
    """A kernel that calls `tile(X, Y, image, block, channels, row, column, pixels)` for all of `blocked`, which is x or
    y. A task takes up to `rows` rows of a block.
    """
    channels, block = blocked.shape[1], blocked.block
    height, width = _plane_rows(blocked)
    rows = min(rows, height)
    chunks, blocks = -(-height // rows), -(-channels // block)

    def body(X: Any, Y: Any) -> None:
        with row_tasks(X, blocks, chunks, rows, height) as (image, b, row):
            for count, whole in _block_fillings(channels, block):
                with when(b < channels // block if whole else b == channels // block):
                    _loop_over_pixels(width, lambda *at, n=count: tile(X, Y, image, b, n, row, *at))

    return Kernel(build_prim_func([x, y], body), (), 2 * rows * row_bytes(blocked), blocks * chunks)


def _block_fillings(channels: int, block: int) -> list[tuple[int, bool]]:
    """How many channels blocks hold: the whole ones, and the last where it is not."""
    return [(block, True)] * (channels >= block) + [(channels % block, False)] * (channels % block > 0)


def _loop_over_pixels(width: int, tile: Callable[[Expr, int], None]) -> None:
    """A row in tiles of 16 pixels, or one by one where there are no 16."""
    if width < LANES:
        with T.serial(0, width) as column:
            tile(column, 1)
        return
    with T.serial(0, width // LANES) as t:
        tile(t * LANES, LANES)
    if width % LANES:
        tile(T.int32(width - LANES), LANES)

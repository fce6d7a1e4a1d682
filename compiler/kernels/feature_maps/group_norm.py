"""Group normalisation (Wu and He 2018) of blocked feature maps; with a channel in each group, instance normalisation.

Three passes, each in parallel: the sums of each channel over a tile of pixels; from these a factor and a summand for
each channel; and their use on all pixels, with the epilogue. What a core has read for its sums is in its cache still
where the tensor is small.

Sums are of differences to a channel's first pixel: a mean that is large beside the deviation takes no digits from them.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import GroupNormParameters
from veltair.compiler.kernels.feature_maps.blocked_planes import blocked_index, row_bytes, row_points

SUMS = 4  # pixels that are added side by side, since each sum waits for its last step


class GroupNorm:
    """The design space of "group_norm": y = activation(scale * (x - mean) / deviation + shift [+ residual]).

    inputs: x (N, C/b, H, W, b)[, residual as the output]; weights: scale and shift (C). Parameters:
    `GroupNormParameters`::

        for point in GroupNorm().points(spec, features):
            kernel = GroupNorm().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        """rows, columns: of a tile; those of signals, which are images of one row, are parts of it."""
        height, width = spec.outputs[0].shape[2:]
        if height > 1:
            return [point | {"columns": width} for point in row_points(height, (16, 4, 64, 1024))]
        return [{"rows": 1, "columns": c} for c in dict.fromkeys(min(width, c) for c in (1024, 256, 8192))]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        plan = _GroupNorm(spec, int(point["rows"]), int(point["columns"]))
        function = build_prim_func([*spec.inputs, *plan.weights, plan.y], plan.emit)
        share = plan.rows * plan.columns / plan.width
        block_size = round(share * sum(row_bytes(t) for t in (*spec.inputs, plan.y)))
        return Kernel(function, plan.weights, block_size, plan.blocks * plan.tiles)


class _GroupNorm:
    """The code of the three passes; `emit` makes it."""

    # The operands' buffers and the scratch; they exist while the code is emitted.
    X: Any
    residual: Any | None
    scale: Any
    shift: Any
    Y: Any
    sums: Any  # (images, tiles, C): of differences to the first pixel
    squares: Any  # likewise, of their squares
    factors: Any  # (images, C)
    summands: Any  # (images, C)

    def __init__(self, spec: LayerSpec, rows: int, columns: int) -> None:
        self.spec, self.x, self.y, self.rows, self.columns = spec, spec.inputs[0], spec.outputs[0], rows, columns
        self.parameters = spec.parameters_as(GroupNormParameters)
        _, self.channels, self.height, self.width = self.y.shape
        self.blocks, self.across = -(-self.channels // self.y.block), -(-self.width // columns)
        self.tiles = -(-self.height // rows) * self.across  # of a plane
        self.each = self.channels // self.parameters.groups  # channels of a group
        self.padded = self.blocks * self.y.block
        self.weights = tuple(pad_axis(spec.weights[name], 0, self.y.block) for name in ("scale", "shift"))

    def emit(self, X: Any, *rest: Any) -> None:
        """The body of the function."""
        self.X, (self.scale, self.shift, self.Y) = X, rest[-3:]
        self.residual = rest[0] if len(rest) > 3 else None
        images, tasks = X.shape[0], self.blocks * self.tiles
        self.sums, self.squares = (
            T.alloc_buffer((images, self.tiles, self.padded), "float32", scope="global") for _ in range(2)
        )
        self.factors, self.summands = (
            T.alloc_buffer((images, self.padded), "float32", scope="global") for _ in range(2)
        )
        with T.parallel(0, images * tasks) as task:
            self._emit_sums(T.bind(task // tasks), T.bind(task // self.tiles % self.blocks), T.bind(task % self.tiles))
        with T.parallel(0, images) as image:
            self._emit_channels(image)
        with T.parallel(0, images * tasks) as task:
            self._emit_pixels(
                T.bind(task // tasks), T.bind(task // self.tiles % self.blocks), T.bind(task % self.tiles)
            )

    def _emit_sums(self, image: Expr, block: Expr, tile: Expr) -> None:
        """The sums of a block of channels over a tile."""
        count = min(SUMS, self.columns)
        halves = range(self.x.block // LANES)
        totals = T.alloc_buffer((2 * count * len(halves),), "float32x16", scope="local")
        for i in range(2 * count * len(halves)):
            T.buffer_store(totals, broadcast(0.0), [i])
        first = [T.bind(self._pixel(image, block, 0, 0, half)) for half in halves]

        def add(pixels: int, row: Expr, column: Expr) -> None:
            for p in range(pixels):
                for half in halves:
                    i = 2 * (half * count + p)
                    value = T.bind(self._pixel(image, block, row, column + p, half) - first[half])
                    T.buffer_store(totals, totals[i] + value, [i])
                    T.buffer_store(totals, totals[i + 1] + value * value, [i + 1])

        top, left, rows, columns = self._extent(tile)
        with T.serial(0, rows) as r:
            with T.serial(0, columns // count) as t:
                add(count, top + r, left + t * count)
            if self.columns % count or self.width % self.columns % count:
                with T.serial(columns // count * count, columns) as column:
                    add(1, top + r, left + column)
        for half in halves:
            for which, buffer in enumerate((self.sums, self.squares)):
                total = totals[2 * half * count + which]
                for p in range(1, count):
                    total = total + totals[2 * (half * count + p) + which]
                vector_store(buffer, total, image, tile, block * self.x.block + half * LANES)

    def _emit_channels(self, image: Expr) -> None:
        """Each channel's factor and summand, by way of its mean and its sum of squared deviations."""
        pixels = float(self.height * self.width)
        with T.serial(0, self.padded // LANES) as v:
            channel, each = T.bind(v * LANES), self.x.block // LANES
            first = T.bind(self._pixel(image, v // each, 0, 0, v % each))
            totals = T.alloc_buffer((2,), "float32x16", scope="local")
            for which in range(2):
                T.buffer_store(totals, broadcast(0.0), [which])
            with T.serial(0, self.tiles) as tile:
                for which, buffer in enumerate((self.sums, self.squares)):
                    T.buffer_store(totals, totals[which] + vector_load(buffer, image, tile, channel), [which])
            offset = T.bind(totals[0] * broadcast(1 / pixels))
            squared = T.bind(T.max(broadcast(0.0), totals[1] - totals[0] * offset))
            mean = T.bind(first + offset)
            if self.each == 1:
                self._finish_channels(image, channel, mean, squared * broadcast(1 / pixels), vector=True)
            else:
                vector_store(self.summands, mean, image, channel)
                vector_store(self.factors, squared, image, channel)
        if self.each > 1:
            with T.serial(0, self.parameters.groups) as group:
                self._emit_group(image, T.bind(group * self.each), pixels)

    def _emit_group(self, image: Expr, first: Expr, pixels: float) -> None:
        """The same for a group of channels, from theirs (Chan et al. 1979: sums of squares of parts)."""
        total = T.alloc_buffer((2,), "float32", scope="local")
        T.buffer_store(total, T.float32(0), [0])
        T.buffer_store(total, T.float32(0), [1])
        with T.serial(0, self.each) as c:
            T.buffer_store(total, total[0] + self.summands[image, first + c], [0])
        mean = T.bind(total[0] * T.float32(1 / self.each))
        with T.serial(0, self.each) as c:
            apart = T.bind(self.summands[image, first + c] - mean)
            squared = self.factors[image, first + c] + apart * apart * T.float32(pixels)
            T.buffer_store(total, total[1] + squared, [1])
        variance = T.bind(total[1] * T.float32(1 / (pixels * self.each)))
        with T.serial(0, self.each) as c:
            self._finish_channels(image, first + c, mean, variance, vector=False)

    def _finish_channels(self, image: Expr, channel: Expr, mean: Expr, variance: Expr, *, vector: bool) -> None:
        """Store the factor and the summand of a channel, or of a vector of them."""

        def at(*index: Expr) -> list[Expr]:
            return [*index[:-1], ramp(index[-1]) if vector else index[-1]]

        epsilon = broadcast(self.parameters.epsilon) if vector else T.float32(self.parameters.epsilon)
        factor = T.bind(T.Div(self.scale[at(channel)], T.sqrt(variance + epsilon)))
        T.buffer_store(self.factors, factor, at(image, channel))
        T.buffer_store(self.summands, self.shift[at(channel)] - mean * factor, at(image, channel))

    def _emit_pixels(self, image: Expr, block: Expr, tile: Expr) -> None:
        """The outputs of a block of channels in a tile."""
        halves = range(self.y.block // LANES)
        lanes = [block * self.y.block + half * LANES for half in halves]
        factors = [T.bind(vector_load(self.factors, image, lane)) for lane in lanes]
        summands = [T.bind(vector_load(self.summands, image, lane)) for lane in lanes]
        top, left, rows, columns = self._extent(tile)
        with T.grid(rows, columns) as (r, c):
            row, column = top + r, left + c
            for half in halves:
                value = self._pixel(image, block, row, column, half) * factors[half] + summands[half]
                if self.residual is not None:
                    at = blocked_index(self.spec.inputs[1], image, block, row, column, half * LANES)
                    value = value + vector_load(self.residual, *at)
                value = apply_activation(value, self.parameters.activation, approximate=self.y.dtype == "uint16")
                vector_store(self.Y, value, *blocked_index(self.y, image, block, row, column, half * LANES))

    def _extent(self, tile: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """The first row and column of a tile, and how many it has."""
        top, left = T.bind(tile // self.across * self.rows), T.bind(tile % self.across * self.columns)
        columns = self.columns if self.width % self.columns == 0 else T.bind(T.min(self.columns, self.width - left))
        return top, left, T.min(self.rows, self.height - top), columns

    def _pixel(self, image: Expr, block: Expr, row: Expr, column: Expr, half: Expr) -> Expr:
        """16 channels of a pixel."""
        return vector_load(self.X, *blocked_index(self.x, image, block, row, column, half * LANES))

"""Direct convolution on vectors: in fp32 for AVX2 and AVX-512, in bfloat16 for AVX-512-bf16.

Each input value, or pair of neighbouring channels, is broadcast against the weight vectors of a register tile (see
`register_tiles.py`). A task is one group of output channels over `rows` output rows.

The weights of a group, its panel, are read once for each tile of the task. Meanwhile the next group's panel is
prefetched, a share with each tile, so that weights that come from memory come at an even rate.

Where channels read a window of the taps each, as the phases of a transposed convolution do, a panel has its own alone.

Most taps of a filter that is dilated as wide as the image read padding. A tile leaves out those that do so for all of
its outputs.

Where the layer ends with a pool over 2 x 2 neighbours, an output is the greatest of four sums.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import prefetch, vector_load, vector_store
from veltair.compiler.codegen.multiply_add import VALUES_PER_STEP, broadcast_input, multiply_add, reduction_body
from veltair.compiler.codegen.prim_func import Operand, build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp
from veltair.compiler.codegen.weight_packing import pack_bf16_pairs, pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.conv.conv_algorithm import ConvAlgorithm
from veltair.compiler.kernels.conv.conv_geometry import (
    ConvGeometry,
    chosen,
    fitting_group_sizes,
    skips_padding,
    where_present,
)
from veltair.compiler.kernels.conv.conv_weights import InputRange, fold_columns, folds_columns, in_windows, input_range
from veltair.compiler.kernels.conv.register_tiles import (
    UNROLL,
    StripTile,
    block_and_lane,
    for_each_tile,
    max_tile_outputs,
    promising_points,
    registers_per_vector,
    rows_of_tasks,
    rows_per_strip,
    strip_cycles,
)

L2_BYTES = 2 << 20  # of recent CPUs; each tile reads a panel beyond it from L3
L3_CYCLES = 5.0  # that a vector of weights takes from there


def points(spec: LayerSpec, features: frozenset[str]) -> list[Point]:
    """pixels: outputs of a register tile; channels: its vectors; rows: output rows of a task."""
    oh, ow = spec.outputs[0].shape[2:]
    blocks = -(-spec.outputs[0].shape[1] // LANES)
    each, pooled = registers_per_vector(features), sums_per_output(spec)
    share = blocks // max(len(spec.parameters_as(Conv2dParameters).windows), 1)  # of one window
    fitting = [c for c in ((4, 2, 3, 1) if each == 1 else (1, 2)) if max_tile_outputs(c, features)]
    sizes = [c for c in fitting if share == blocks or share % c == 0]
    found: list[tuple[float, Point]] = []
    for channels in fitting_group_sizes(blocks, sizes):
        most = max_tile_outputs(channels, features) // pooled
        for pixels in sorted({most, -(-most * 2 // 3)}):
            strip_rows = _rows_per_strip(spec, pixels, channels, features)
            outputs = strip_rows * ow
            cost = strip_cycles(outputs, pixels, channels, each) / (outputs * channels * each)
            if VALUES_PER_STEP[spec.inputs[0].dtype] > 1:
                cost += 0.25 / pixels  # a weight's bytes are used twice as fast: few tiles should read them
            elif channels * LANES * spec.weights["weight"][0].nbytes > L2_BYTES:
                cost = max(cost, L3_CYCLES / pixels)
            for rows, penalty in rows_of_tasks(oh, strip_rows, -(-blocks // channels)):
                point: Point = {"algorithm": ConvAlgorithm.DIRECT.value, "channels": channels}
                found.append((cost + penalty, point | {"pixels": pixels, "rows": rows}))
    return promising_points(found)


def _rows_per_strip(spec: LayerSpec, pixels: int, channels: int, features: frozenset[str]) -> int:
    """One where taps are left out: a tile of several rows meets most of them."""
    if skips_padding(spec):
        return 1
    oh, ow = spec.outputs[0].shape[2:]
    return rows_per_strip(oh, ow, pixels, channels, registers_per_vector(features))


def build(spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
    """The kernel of one of `points`."""
    plan = _DirectConvolution(spec, point, features)
    operands: list[Operand] = [*spec.inputs, plan.weight, plan.bias, *spec.outputs]
    function = build_prim_func(operands, reduction_body(spec.inputs[0].dtype, plan.emit))
    parallelism = plan.groups * plan.chunks * plan.pixels * plan.channels
    return Kernel(function, (plan.weight, plan.bias), plan.block_size(), parallelism)


def sums_per_output(spec: LayerSpec) -> int:
    """The convolution's outputs that one output of the layer is the greatest of."""
    return 4 if spec.parameters_as(Conv2dParameters).pooled else 1


class _Tap(NamedTuple):
    """One tap of the kernel on one block of input channels."""

    block: Expr
    u: Expr  # row of the kernel
    v: Expr
    number: Expr  # in the order of the panel's weights


class _DirectConvolution:
    """The code of a direct convolution; `emit` makes it, one method for each level below."""

    # The operands' buffers and the accumulators; they exist while the code is emitted.
    X: Any
    W: Any
    bias_buffer: Any
    residual: Any | None
    Y: Any
    accumulators: Any

    def __init__(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> None:
        self.spec, self.x, self.y = spec, spec.inputs[0], spec.outputs[0]
        self.activation = spec.parameters_as(Conv2dParameters).activation
        self.geometry = ConvGeometry.of_layer(spec)
        self.channels, self.pixels, self.rows = (int(point[key]) for key in ("channels", "pixels", "rows"))
        self.height, self.width = self.y.shape[2:]
        self.pooled = sums_per_output(spec)
        self.output_vectors, self.chunks = -(-self.y.shape[1] // LANES), -(-self.height // self.rows)
        self.group_width = self.channels * LANES  # output channels of a group
        self.skips = skips_padding(spec)
        self.strip_rows = _rows_per_strip(spec, self.pixels, self.channels, features)
        # The weights: a panel for each group, of `inner` steps for each block and tap.
        self.values = VALUES_PER_STEP[self.x.dtype]
        panels, reads = _pack_panels(spec, self.group_width)
        self.first_block = reads.first_block
        self.groups, self.blocks, self.kernel_rows, self.kernel_columns, self.inner, _ = panels.shape
        whole = 0, 0, self.kernel_rows, self.kernel_columns
        self.windows = spec.parameters_as(Conv2dParameters).windows or (whole,)
        self.weight = panels.reshape(self.groups, -1)
        self.bias = pad_axis(spec.weights["bias"], 0, self.group_width)
        # Lines of the next panel that each tap of each tile prefetches.
        self.tiles_per_strip = -(-self.strip_rows * self.width // self.pixels)
        tiles = -(-self.height // self.strip_rows) * self.tiles_per_strip  # of a group
        panel_lines = self.inner * self.channels
        # With more tiles than lines, reading a panel is nothing beside its use.
        self.prefetched_lines = -(-panel_lines // tiles) if tiles <= panel_lines else 0
        # The innermost loop: turns of `unroll` steps, fewer for the last block of input channels where it is not full.
        self.unroll = UNROLL if self.inner % UNROLL == 0 else 1
        self.last_block = self.x.physical[1] - 1
        self.turns = self.inner // self.unroll
        left_over = self.x.shape[1] - self.last_block * self.x.block
        folded = self.inner * self.values != self.x.block  # so all channels are there
        self.last_turns = self.turns if folded else -(-left_over // (self.values * self.unroll))

    def block_size(self) -> int:
        """Bytes of working set of a task: its input rows, its panel and its outputs."""
        item, stride = np.dtype(self.x.dtype).itemsize, self.geometry.stride
        rows_apart = stride.rows if self.pooled == 1 else 2 * stride.rows  # input rows between outputs
        input_rows = self.rows * rows_apart + self.geometry.kernel.rows - 1
        inputs = input_rows * self.geometry.output.columns * stride.columns * self.blocks * self.x.block * item
        return int(inputs + self.weight[0].nbytes + self.rows * self.width * self.group_width * item)

    def emit(self, X: Any, *rest: Any) -> None:
        """The body of the function: one task for each image, group of output channels and chunk of rows."""
        self.X, (self.W, self.bias_buffer, self.Y) = X, rest[-3:]
        self.residual = rest[0] if len(self.spec.inputs) > 1 else None
        with T.parallel(0, X.shape[0] * self.groups * self.chunks) as task:
            registers = self.pixels * self.pooled * self.channels
            self.accumulators = T.alloc_buffer((registers,), "float32x16", scope="local")
            image = T.bind(task // (self.groups * self.chunks))
            group, first = T.bind(task // self.chunks % self.groups), T.bind(task % self.chunks * self.rows)

            def emit_tile(tile: StripTile) -> None:
                number = tile.row // self.strip_rows * self.tiles_per_strip + tile.number
                self._emit_tile(image, group, tile.positions(self.width), number)

            size = (self.height, self.width)
            for_each_tile(first, self.rows, size, self.strip_rows, self.pixels, emit_tile)

    def _emit_tile(self, image: Expr, group: Expr, outputs: list[tuple[Expr, Expr]], number: Expr) -> None:
        """The outputs at some positions; the `number`-th tile of its group."""
        sources = [source for output in outputs for source in self._pooled_sources(*output)]
        self._start_with_bias(group, len(sources))
        first_row, first_column, rows, columns = self._window(group)
        with T.grid(self.blocks, rows, columns) as (b, u, v):
            tap_number = T.bind((b * self.kernel_rows + u) * self.kernel_columns + v)
            tap = _Tap(T.bind(self.first_block(group) + b), first_row + u, first_column + v, tap_number)
            self._prefetch_panel(group, number, tap)
            with when(*self._meets_image(sources[0], sources[-1], tap)):
                turns = self.turns
                if self.last_turns < self.turns:
                    turns = T.bind(T.Select(tap.block < self.last_block, T.int32(self.turns), T.int32(self.last_turns)))
                with T.serial(0, turns) as turn:
                    for k in range(self.unroll):
                        self._reduction_step(image, group, sources, tap, turn * self.unroll + k)
        for p, (row, column) in enumerate(outputs):
            for c in range(self.channels):
                with where_present(self.output_vectors, self.channels, group, c):
                    self._finish_output(image, group, p, row, column, c)

    def _window(self, group: Expr) -> list[Expr]:
        """The first row, the first column and the extents of the taps that a group reads."""
        share = group // (self.groups // len(self.windows))
        return [chosen(share, numbers) for numbers in zip(*self.windows, strict=True)]

    def _meets_image(self, first: tuple[Expr, Expr], last: tuple[Expr, Expr], tap: _Tap) -> list[Expr]:
        """Whether a tap reads more than padding for the outputs of a row from the first to the last."""
        if not self.skips:
            return []
        begin, end = (self.geometry.input_position(*output, tap.u, tap.v) for output in (first, last))
        halo, (height, width) = self.x.halo, self.x.shape[2:]
        rows = end[0] >= halo.top, begin[0] < halo.top + height
        return [*rows, end[1] >= halo.left, begin[1] < halo.left + width]

    def _pooled_sources(self, row: Expr, column: Expr) -> list[tuple[Expr, Expr]]:
        """The convolution's outputs of which one output of the layer is the greatest."""
        if self.pooled == 1:
            return [(row, column)]
        (height, width), pair = self.geometry.output, range(2)
        rows = [T.min(row * 2 + i, height - 1) if 2 * self.height > height else row * 2 + i for i in pair]
        columns = [T.min(column * 2 + i, width - 1) if 2 * self.width > width else column * 2 + i for i in pair]
        return [(r, c) for r in rows for c in columns]

    def _start_with_bias(self, group: Expr, sums: int) -> None:
        for c in range(self.channels):
            start = T.bind(vector_load(self.bias_buffer, (group * self.channels + c) * LANES))
            for p in range(sums):
                T.buffer_store(self.accumulators, start, [p * self.channels + c])

    def _prefetch_panel(self, group: Expr, number: Expr, tap: _Tap) -> None:
        """This tap's share of the next group's panel."""
        taps = self.blocks * self.kernel_rows * self.kernel_columns
        for line in range(self.prefetched_lines):
            prefetch(self.W[group + 1, ((number * taps + tap.number) * self.prefetched_lines + line) * LANES])

    def _reduction_step(
        self, image: Expr, group: Expr, sources: list[tuple[Expr, Expr]], tap: _Tap, step: Expr
    ) -> None:
        """Add one input value, or pair of them, to all sums of the tile."""
        start = (tap.number * self.inner + step) * self.group_width
        weights = [T.bind(self.W[group, ramp(start + c * LANES)]) for c in range(self.channels)]
        for p, (row, column) in enumerate(sources):
            position = self.geometry.input_position(row, column, tap.u, tap.v)
            value = T.bind(broadcast_input(self.X, image, tap.block, *position, step * self.values))
            for c in range(self.channels):
                register = p * self.channels + c
                total = multiply_add(self.accumulators[register], value, weights[c])
                T.buffer_store(self.accumulators, total, [register])

    def _finish_output(self, image: Expr, group: Expr, p: int, row: Expr, column: Expr, c: int) -> None:
        """The epilogue of one vector of an output: pool, residual, activation, and store."""
        y, vector = self.y, group * self.channels + c
        sums = [self.accumulators[(p * self.pooled + i) * self.channels + c] for i in range(self.pooled)]
        result = reduce(T.max, sums)
        if self.residual is not None:
            block, lane = block_and_lane(self.spec.inputs[1], vector)
            halo = self.spec.inputs[1].halo
            result = result + vector_load(self.residual, image, block, row + halo.top, column + halo.left, lane)
        block, lane = block_and_lane(y, vector)
        at = (image, block, row + y.halo.top, column + y.halo.left)
        vector_store(self.Y, apply_activation(result, self.activation, approximate=self.values > 1), *at, lane)
        if y.block > LANES and self.output_vectors % 2 and c == (self.output_vectors - 1) % self.channels:
            with when(vector == self.output_vectors - 1):
                vector_store(self.Y, broadcast(0.0), *at, LANES)  # the other half of a block


def _pack_panels(spec: LayerSpec, width: int) -> tuple[NDArray[Any], InputRange]:
    """Weights (groups, IC/b, KH, KW, steps of a block, width), and the input channels that the groups read.

    In bfloat16, the columns of a kernel over few channels are folded into these.
    """
    x = spec.inputs[0]
    reads = input_range(spec, width)
    wide, inner = in_windows(reads.weight, spec.parameters_as(Conv2dParameters).windows), x.block
    if x.dtype == "uint16" and folds_columns(spec):
        rows = pad_axis(fold_columns(spec, wide), 2, 2)
        wide, inner = rows.transpose(0, 2, 1)[..., None], rows.shape[2]
    wide = pad_axis(pad_axis(wide, 0, width), 1, inner)
    packed = wide.reshape(-1, width, reads.blocks, inner, *wide.shape[2:]).transpose(0, 2, 4, 5, 3, 1)
    return pack_bf16_pairs(packed, 4) if x.dtype == "uint16" else np.ascontiguousarray(packed), reads

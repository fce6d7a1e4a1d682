"""Convolution in groups in fp32 on vectors: each vector of outputs reads the input channels of its own groups alone.

Groups need not fill vectors: where a vector lies in two groups it reads both, between zeros. Before a channel shuffle
each group has vectors of its own; the sums of all groups for the outputs of a tile wait in a scratch, and are shuffled
as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import allocate_scratch, vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.transpose import interleave_channels
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.conv.conv_algorithm import ConvAlgorithm
from veltair.compiler.kernels.conv.conv_geometry import ConvGeometry, where_present
from veltair.compiler.kernels.conv.register_tiles import (
    UNROLL,
    StripTile,
    for_each_tile,
    max_tile_outputs,
    promising_points,
    registers_per_vector,
    rows_of_tasks,
    rows_per_strip,
    strip_cycles,
)


@dataclass(frozen=True, slots=True)
class WeightPanels:
    """Panels of output channels that are computed together, and the input channels that they read.

    Panel n computes the output channels from n * width on. If they are shuffled, panel v * groups + g computes those
    from v * width on of group g.

    >>> panels = WeightPanels(groups=2, outputs=24, inputs=8, width=16, shuffled=False)
    >>> panels.count, panels.first_input(1), panels.end_input(1, min)  # panel 1 lies in both groups
    (3, 0, 16)
    """

    groups: int
    outputs: int  # output channels of a group
    inputs: int  # input channels of a group
    width: int  # output channels of a panel
    shuffled: bool

    @classmethod
    def of_layer(cls, spec: LayerSpec, channels: int) -> WeightPanels:
        """The panels of `channels` vectors each."""
        conv = spec.parameters_as(Conv2dParameters)
        outputs, inputs = spec.weights["weight"].shape[:2]
        return cls(conv.groups, outputs // conv.groups, inputs, channels * LANES, conv.shuffled)

    @property
    def count(self) -> int:
        each = self.outputs if self.shuffled else self.groups * self.outputs
        return -(-each // self.width) * (self.groups if self.shuffled else 1)

    def output_channels(self, n: int) -> list[int]:
        """The output channels of a panel, in the order of its weights."""
        if self.shuffled:
            first, end = n // self.groups * self.width, self.outputs
            return [n % self.groups * self.outputs + i for i in range(first, min(first + self.width, end))]
        return list(range(n * self.width, min((n + 1) * self.width, self.groups * self.outputs)))

    def first_input(self, n: Any) -> Any:
        """The first input channel of a panel, which is a number or an expression."""
        return (n % self.groups if self.shuffled else n * self.width // self.outputs) * self.inputs

    def end_input(self, n: Any, minimum: Any) -> Any:
        """The input channel behind the last one of a panel; `minimum` takes that of two numbers or expressions."""
        if self.shuffled:
            return self.first_input(n) + self.inputs
        last_output = minimum((n + 1) * self.width, self.groups * self.outputs) - 1
        return last_output // self.outputs * self.inputs + self.inputs

    def input_count(self, n: int) -> int:
        """Input channels that a panel reads."""
        return int(self.end_input(n, min) - self.first_input(n))

    def pack(self, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Weights (panels, KH, KW, input channels of the widest panel, width) and biases (panels, width)."""
        most = max(map(self.input_count, range(self.count)))
        found = np.zeros((self.count, *weight.shape[2:], most, self.width), np.float32)
        biases = np.zeros((self.count, self.width), np.float32)
        for n in range(self.count):
            for lane, channel in enumerate(self.output_channels(n)):
                start = channel // self.outputs * self.inputs - self.first_input(n)
                found[n, :, :, start : start + self.inputs, lane] = weight[channel].transpose(1, 2, 0)
                biases[n, lane] = bias[channel]
        return found, biases


def points(spec: LayerSpec, features: frozenset[str]) -> list[Point]:
    """pixels: outputs of a register tile; channels: its vectors; rows: output rows of a task."""
    oh, ow = ConvGeometry.of_layer(spec).output
    each = registers_per_vector(features)
    found: list[tuple[float, Point]] = []
    for channels in (1, 2, 3, 4):
        most = max_tile_outputs(channels, features)
        if not most or (channels > 1 and channels > _vectors_together(spec)):
            continue
        panels = WeightPanels.of_layer(spec, channels)
        steps = sum(map(panels.input_count, range(panels.count)))
        for pixels in sorted({most, -(-most * 2 // 3)}):
            strip_rows = rows_per_strip(oh, ow, pixels, channels, each)
            cost = steps * strip_cycles(strip_rows * ow, pixels, channels, each) / (strip_rows * ow)
            for rows, penalty in rows_of_tasks(oh, strip_rows, 1):
                point: Point = {"algorithm": ConvAlgorithm.GROUPED.value, "channels": channels}
                found.append((cost * (1 + penalty), point | {"pixels": pixels, "rows": rows}))
    return promising_points(found)


def _vectors_together(spec: LayerSpec) -> int:
    """Vectors of outputs that may be computed together: those of a group, if they are to be shuffled."""
    conv = spec.parameters_as(Conv2dParameters)
    outputs = spec.outputs[0].shape[1] // (conv.groups if conv.shuffled else 1)
    return -(-outputs // LANES)


def build(spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
    """The kernel of one of `points`."""
    plan = _GroupedConvolution(spec, point, features)
    function = build_prim_func([*spec.inputs, plan.weight, plan.bias, *spec.outputs], plan.emit)
    parallelism = plan.tasks * plan.chunks * plan.pixels * plan.channels
    return Kernel(function, (plan.weight, plan.bias), plan.block_size(), parallelism)


class _GroupedConvolution:
    """The code of a grouped convolution; `emit` makes it, one method for each level below."""

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
        self.height, self.width = self.geometry.output
        self.panels = WeightPanels.of_layer(spec, self.channels)
        self.output_vectors, self.chunks = -(-self.y.shape[1] // LANES), -(-self.height // self.rows)
        shuffled = self.panels.shuffled
        self.tasks = self.panels.count // self.panels.groups if shuffled else self.panels.count  # of one chunk
        self.weight, self.bias = self.panels.pack(spec.weights["weight"], spec.weights["bias"])
        each = registers_per_vector(features)
        self.strip_rows = rows_per_strip(self.height, self.width, self.pixels, self.channels, each)
        self.unroll = gcd(self.panels.inputs, self.x.block, UNROLL)  # input channels of a turn: all in one block

    def block_size(self) -> int:
        """Bytes of working set of a task: its input rows, its weights and its outputs."""
        shuffled, stride = self.panels.shuffled, self.geometry.stride
        made = self.panels.width * self.panels.groups if shuffled else self.panels.width
        inputs = self.x.shape[1] if shuffled else self.weight.shape[3]
        input_rows = self.rows * stride.rows + self.geometry.kernel.rows - 1
        input_bytes = input_rows * self.width * stride.columns * inputs * 4
        weight_bytes = self.weight[0].nbytes * made // self.panels.width
        return int(input_bytes + weight_bytes + self.rows * self.width * made * 4)

    def emit(self, X: Any, *rest: Any) -> None:
        """The body of the function: one task for each image, panel (or one of each group) and chunk of rows."""
        self.X, (self.W, self.bias_buffer, self.Y) = X, rest[-3:]
        self.residual = rest[0] if len(self.spec.inputs) > 1 else None
        groups, shuffled = self.panels.groups, self.panels.shuffled
        with T.parallel(0, X.shape[0] * self.tasks * self.chunks) as task:
            self.accumulators = T.alloc_buffer((self.pixels * self.channels,), "float32x16", scope="local")
            sums = allocate_scratch((groups, self.pixels, self.panels.width), "float32") if shuffled else None
            image = T.bind(task // (self.tasks * self.chunks))
            nth, first = T.bind(task // self.chunks % self.tasks), T.bind(task % self.chunks * self.rows)

            def emit_tile(tile: StripTile) -> None:
                if sums is None:
                    self._emit_tile(image, nth, tile)
                else:
                    self._emit_shuffled_tile(image, nth, tile, sums)

            for_each_tile(first, self.rows, (self.height, self.width), self.strip_rows, self.pixels, emit_tile)

    def _emit_tile(self, image: Expr, panel: Expr, tile: StripTile) -> None:
        """The outputs of a tile for one panel."""
        positions = tile.positions(self.width)
        self._accumulate(image, panel, positions)
        for p, position in enumerate(positions):
            for c in range(self.channels):
                with where_present(self.output_vectors, self.channels, panel, c):
                    value = self.accumulators[p * self.channels + c]
                    self._finish_output(image, panel * self.channels + c, *position, value)

    def _emit_shuffled_tile(self, image: Expr, nth: Expr, tile: StripTile, sums: Any) -> None:
        """The outputs of a tile for the nth panels of all groups, which wait in `sums` and are stored shuffled."""
        groups, positions = self.panels.groups, tile.positions(self.width)
        with T.serial(0, groups) as g:
            self._accumulate(image, nth * groups + g, positions)
            for p in range(tile.count):
                for c in range(self.channels):
                    vector_store(sums, self.accumulators[p * self.channels + c], g, p, c * LANES)
        with T.serial(0, tile.count) as p:
            position = tile.position(self.width, T.bind(tile.first + p))
            for c in range(self.channels):
                vectors = [T.bind(vector_load(sums, g, p, c * LANES)) for g in range(groups)]
                for i, value in enumerate(interleave_channels(vectors)):
                    block = T.bind((nth * self.channels + c) * groups + i)
                    with when(block < self.output_vectors):
                        self._finish_output(image, block, *position, value)

    def _accumulate(self, image: Expr, panel: Expr, positions: list[tuple[Expr, Expr]]) -> None:
        """The sums of one panel for the outputs at some positions."""
        for c in range(self.channels):
            start = T.bind(vector_load(self.bias_buffer, panel, c * LANES))
            for p in range(len(positions)):
                T.buffer_store(self.accumulators, start, [p * self.channels + c])
        first = T.bind(self.panels.first_input(panel))
        turns = T.bind((self.panels.end_input(panel, T.min) - first) // self.unroll)
        with T.grid(*self.geometry.kernel) as (u, v), T.serial(0, turns) as turn:
            channel = T.bind(first + turn * self.unroll)
            block, lane = T.bind(channel // self.x.block), T.bind(channel % self.x.block)
            for k in range(self.unroll):
                step = (panel, u, v, turn * self.unroll + k)
                weights = [T.bind(vector_load(self.W, *step, c * LANES)) for c in range(self.channels)]
                for p, position in enumerate(positions):
                    where = self.geometry.input_position(*position, u, v)
                    value = T.bind(T.broadcast(self.X[(image, block, *where, lane + k)], LANES))
                    for c in range(self.channels):
                        register = p * self.channels + c
                        total = self.accumulators[register] + value * weights[c]
                        T.buffer_store(self.accumulators, total, [register])

    def _finish_output(self, image: Expr, block: Expr, row: Expr, column: Expr, value: Expr) -> None:
        """The epilogue of one vector of an output: residual, activation, and store."""
        y = self.y
        if self.residual is not None:
            halo = self.spec.inputs[1].halo
            value = value + vector_load(self.residual, image, block, row + halo.top, column + halo.left, 0)
        result = apply_activation(value, self.activation)
        vector_store(self.Y, result, image, block, row + y.halo.top, column + y.halo.left, 0)

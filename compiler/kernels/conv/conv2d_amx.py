"""Convolution in bfloat16 on AMX tiles.

Four accumulator tiles make a register block of 32 outputs x 32 output channels, or 64 x 16. Each step of the reduction,
32 products deep, loads tiles of inputs (see `amx_tile_cover.py`) and of weights. A block of 64 x 16 reads each weight
only once where an image has no more outputs.

A convolution over few channels (an image) folds its columns into the channels: with the channels innermost, the
`KW x IC` inputs of a kernel row lie side by side, and are one tile row.

Where the weights of a unit of channels exceed L1, the reduction may go in stretches: the products of one stretch for
all stacks of outputs, whose sums wait in L2, before the next. Its weights are read once from L2 and then from L1, and
those of the next stretch come meanwhile.

Sums leave the tiles through memory. Their epilogue is done by vectors between the products of the next outputs, a few
rows a step, so that it costs next to nothing where there are products enough.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import Any, NamedTuple

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.amx import (
    load_tile,
    load_tile_configuration,
    multiply_bf16_tiles,
    release_tiles,
    store_tile,
    tile_configuration,
    zero_tile,
)
from veltair.compiler.codegen.bf16 import float32_pair_to_bf16
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import allocate_scratch, prefetch, vector_load, vector_store
from veltair.compiler.codegen.prim_func import Operand, build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.conv.amx_tile_choice import AmxTileChoice
from veltair.compiler.kernels.conv.amx_tile_cover import BLOCK, DEPTH, TILE, TileCover, TileMode, fills_one_tile
from veltair.compiler.kernels.conv.amx_weight_packing import pack_amx_weights
from veltair.compiler.kernels.conv.conv_weights import input_range

ACCUMULATORS = 4  # tile registers 0 … 3; the others hold inputs and weights
PREFETCH_STEPS = 64  # how far ahead of their use weights are prefetched where each is read once
# The last steps of a long reduction, in which sums are finished: their lines are still in L1 when the next sums are
# stored there, and stores that miss it wait for one another (a sixth of the time of 72 steps).
FINISHING_STEPS = 16


def conv2d_amx(spec: LayerSpec, point: Point) -> Kernel:
    """The kernel of one point of `amx_tile_choice.choose_amx_tiles`."""
    plan = _AmxConvolution(spec, AmxTileChoice.from_point(point))
    operands: list[Operand] = [*spec.inputs, plan.weight, plan.bias, plan.configuration, *spec.outputs]
    function = build_prim_func(operands, plan.emit)
    parallelism = plan.groups * plan.chunks * ACCUMULATORS
    return Kernel(function, (plan.weight, plan.bias, plan.configuration), plan.block_size(), parallelism)


class TilePlacement(NamedTuple):
    """What one register block computes.

    >>> TilePlacement(unit=1, stack=4, kept=0).stack
    4
    """

    unit: Expr  # of output channels
    stack: Expr  # of outputs
    kept: Expr  # where its sums lie in the scratch


class _AmxConvolution:
    """The code of a convolution, one method for each phase, in the order of `_emit_task`."""

    # The operands' buffers and the scratch for sums; they exist while the code is emitted.
    X: Any
    W: Any
    bias_buffer: Any
    residual: Any | None
    Y: Any
    sums: Any

    def __init__(self, spec: LayerSpec, choice: AmxTileChoice) -> None:
        self.spec = spec
        self.activation = spec.parameters_as(Conv2dParameters).activation
        self.cover = TileCover(spec, choice.mode)
        self.chunks = choice.chunks
        self.stacks_per_task = -(-self.cover.stacks // choice.chunks)
        # The register block: `cover.tiles` tiles of outputs x `channel_tiles` tiles of output channels.
        self.channel_tiles = ACCUMULATORS // self.cover.tiles
        self.unit = self.channel_tiles * TILE  # output channels of a register block
        self.units_per_task = choice.channel_blocks * (1 if fills_one_tile(spec) else BLOCK // self.unit)
        # The operands besides the tensors.
        reads = input_range(spec, BLOCK)
        self.first_input_block = reads.first_block
        self.weight = pack_amx_weights(spec, reads.weight, self.channel_tiles)
        self.bias = pad_axis(spec.weights["bias"], 0, BLOCK)
        self.configuration = tile_configuration()
        # The reduction: `depth` blocks of input channels, in stretches, each with `taps` steps a block.
        units, self.depth, self.kernel_rows, self.kernel_columns = self.weight.shape[:4]
        self.groups = units // self.units_per_task
        self.taps = self.kernel_rows * self.kernel_columns
        self.stretch = choice.stretch or self.depth  # blocks of input channels
        self.stretches = self.depth // self.stretch
        self.last_stretch = self.depth - (self.stretches - 1) * self.stretch
        self.kept_stacks = self.stacks_per_task * self.units_per_task if self.stretches > 1 else 1
        # The last steps of long reductions finish the sums before, the same number at each step; code of the other
        # steps is kept short.
        long = self.last_stretch * self.taps > 3 * FINISHING_STEPS
        self.finishing_blocks = -(-FINISHING_STEPS // self.taps) if long else self.last_stretch
        finished = self.cover.finished_outputs
        self.outputs_per_step = -(-finished // (self.finishing_blocks * self.taps))
        self.first_finishing_step = self.finishing_blocks * self.taps - -(-finished // self.outputs_per_step)
        # Lines of the next task's weights that each step of each stack prefetches: they come while these are in use.
        # Weights that are used only once are prefetched a distance ahead.
        turns = self.stacks_per_task if self.stretches > 1 else self.cover.stacks
        self.prefetched_lines = -(-self.unit // turns) if choice.prefetches else 0
        self.reads_weights_once = choice.mode == TileMode.TALL
        self.prefetch_distance = PREFETCH_STEPS * self.unit * DEPTH if self.reads_weights_once else 0

    def block_size(self) -> int:
        """Bytes of working set of a task: its inputs, weights and outputs."""
        stride = self.cover.geometry.stride
        # Inputs of an output, of all lanes of a block.
        reads = self.taps if self.cover.mode == TileMode.GATHERED else stride.rows * stride.columns
        outputs = self.stacks_per_task * self.cover.rows
        inputs = outputs * reads * self.spec.inputs[0].block * self.depth * 2
        weights = self.units_per_task * self.weight[0].nbytes
        return int(inputs + weights + outputs * self.unit * self.units_per_task * 2)

    def emit(self, X: Any, *rest: Any) -> None:
        """The body of the function: one task for each image, group of output channels and chunk of outputs."""
        self.X, self.Y = X, rest[-1]
        self.W, self.bias_buffer, configuration = rest[-4:-1]
        self.residual = rest[0] if len(self.spec.inputs) > 1 else None
        source = self._gather_inputs() if self.cover.mode == TileMode.GATHERED else X
        with T.parallel(0, X.shape[0] * self.groups * self.chunks) as task:
            self._emit_task(task, source, configuration)

    def _emit_task(self, task: Expr, source: Any, configuration: Any) -> None:
        """All stretches of the reduction over the register blocks of a task; the last one also finishes sums."""
        self.sums = allocate_scratch((self.kept_stacks, self.cover.rows, self.unit), "float32")
        image = T.bind(task // (self.groups * self.chunks))
        group = T.bind(task // self.chunks % self.groups)
        first = T.bind(task % self.chunks * self.stacks_per_task)
        present = T.max(T.min(self.stacks_per_task, self.cover.stacks - first), 0)
        count = T.bind(present * self.units_per_task)  # register blocks
        load_tile_configuration(T.address_of(configuration[0]))

        def placement(nth: Expr) -> TilePlacement:
            unit = T.bind(group * self.units_per_task + nth % self.units_per_task)
            stack = T.bind(first + nth // self.units_per_task)
            return TilePlacement(unit, stack, nth if self.stretches > 1 else 0)

        if self.stretches > 1:
            with T.grid(self.stretches - 1, count) as (part, nth):
                at = placement(nth)
                with when(part == 0):
                    self._zero_accumulators()
                with when(part > 0):
                    self._load_accumulators(at)
                self._accumulate(source, image, at, part * self.stretch, self.stretch)
                self._store_accumulators(at)
        with T.serial(0, count) as nth:
            at, earlier = placement(nth), placement(nth - 1)
            if self.stretches > 1:
                self._load_accumulators(at)
            else:
                self._zero_accumulators()
            self._accumulate_and_finish(source, image, at, nth, earlier)
            self._store_accumulators(at)
        with when(count > 0), T.serial(0, self.cover.finished_outputs) as n:
            self._finish_output(image, placement(count - 1), n)
        release_tiles()

    def _gather_inputs(self) -> Any:
        """Copy the inputs of each step into the order of the outputs: (N, IC/32, KH, KW, outputs, 32)."""
        x, geometry = self.spec.inputs[0], self.cover.geometry
        blocks, kh, kw = x.physical[1], self.kernel_rows, self.kernel_columns
        shape = (self.X.shape[0], blocks, kh, kw, self.cover.stacks * self.cover.rows, DEPTH)
        gathered = T.alloc_buffer(shape, "uint16", scope="global")
        T.buffer_store(gathered, T.uint16(0), [extent - 1 for extent in shape])  # see memory.allocate_scratch
        with T.parallel(0, self.X.shape[0] * blocks * kh) as part:
            image, block = T.bind(part // (blocks * kh)), T.bind(part // kh % blocks)
            u = T.bind(part % kh)
            with T.grid(*geometry.output) as (row, column):
                for v in range(kw):
                    value = self.X[(image, block, *geometry.input_position(row, column, u, v), T.ramp(0, 1, DEPTH))]
                    output = row * geometry.output.columns + column
                    T.buffer_store(gathered, value, [image, block, u, v, output, T.ramp(0, 1, DEPTH)])
        return gathered

    def _zero_accumulators(self) -> None:
        for register in range(ACCUMULATORS):
            zero_tile(register)

    def _load_accumulators(self, at: TilePlacement) -> None:
        for register in range(ACCUMULATORS):
            load_tile(register, self._sums_of(register, at), self.unit * 4)

    def _store_accumulators(self, at: TilePlacement) -> None:
        for register in range(ACCUMULATORS):
            store_tile(register, self._sums_of(register, at), self.unit * 4)

    def _sums_of(self, register: int, at: TilePlacement) -> Expr:
        row, column = divmod(register, self.channel_tiles)
        return T.address_of(self.sums[at.kept, row * TILE, column * TILE])

    def _accumulate(self, source: Any, image: Expr, at: TilePlacement, start: Expr, blocks: int) -> None:
        """Add the products of `blocks` blocks of input channels from `start` on."""
        with T.grid(blocks, self.kernel_rows) as (block, u):
            for v in range(self.kernel_columns):
                self._reduction_step(source, image, at, start, blocks, block, u, v)

    def _accumulate_and_finish(
        self, source: Any, image: Expr, at: TilePlacement, nth: Expr, earlier: TilePlacement
    ) -> None:
        """The last stretch of the nth register block; behind its last steps, finish the outputs of the earlier one."""
        start, blocks, finished = self.depth - self.last_stretch, self.last_stretch, self.cover.finished_outputs
        plain = blocks - self.finishing_blocks
        if plain:
            with T.grid(plain, self.kernel_rows) as (block, u):
                for v in range(self.kernel_columns):
                    self._reduction_step(source, image, at, start, blocks, block, u, v)
        unrolled = product(range(plain, blocks), range(self.kernel_rows), range(self.kernel_columns))
        for step, (block, u, v) in enumerate(unrolled):
            self._reduction_step(source, image, at, start, blocks, block, u, v)
            first = (step - self.first_finishing_step) * self.outputs_per_step
            if first >= 0:
                with when(nth > 0):
                    for n in range(first, min(first + self.outputs_per_step, finished)):
                        self._finish_output(image, earlier, n)

    def _reduction_step(
        self, source: Any, image: Expr, at: TilePlacement, start: Expr, blocks: int, block: Expr, u: Expr, v: int
    ) -> None:
        """32 products deep: tap (u, v) of one of the `blocks` blocks of input channels from `start` on."""
        self._prefetch_weights(at, start, blocks, block, u, v)
        for tile in range(self.channel_tiles):
            address = T.address_of(self.W[at.unit, start + block, u, v, tile, 0, 0, 0])
            load_tile(8 - self.channel_tiles + tile, address, 64)
        taken = self.first_input_block(at.unit * self.unit // BLOCK) + start + block
        for tile in range(self.cover.tiles):
            inputs = ACCUMULATORS + tile % (ACCUMULATORS - self.channel_tiles)
            address = self.cover.input_address(source, image, taken, u, v, at.stack, tile)
            load_tile(inputs, address, self.cover.stride_bytes)
            for other in range(self.channel_tiles):
                multiply_bf16_tiles(tile * self.channel_tiles + other, inputs, 8 - self.channel_tiles + other)

    def _prefetch_weights(self, at: TilePlacement, start: Expr, blocks: int, block: Expr, u: Expr, v: int) -> None:
        """This step's share of the weights that are needed next."""
        turn = at.kept if self.stretches > 1 else at.stack
        behind = (at.unit, 0) if self.reads_weights_once else (at.unit + self.units_per_task - 1, start + blocks)
        for line in range(self.prefetched_lines):
            step = (turn * blocks + block) * self.taps + u * self.kernel_columns + v
            fetched = (step * self.prefetched_lines + line) * DEPTH + self.prefetch_distance
            prefetch(self.W[*behind, 0, 0, 0, 0, 0, fetched])

    def _finish_output(self, image: Expr, at: TilePlacement, n: Expr) -> None:
        """The epilogue of the nth output of a stack: pool, bias, residual, activation, and store."""
        y = self.spec.outputs[0]
        sum_rows, row, column = self.cover.nth_output(at.stack, n)
        first = T.bind(at.unit * self.unit)
        block, lane = T.bind(first // BLOCK), T.bind(first % BLOCK)
        starts = range(0, self.unit, LANES)
        values = [reduce(T.max, [vector_load(self.sums, at.kept, r, i) for r in sum_rows]) for i in starts]
        values = [value + vector_load(self.bias_buffer, first + i) for value, i in zip(values, starts, strict=True)]
        if self.residual is not None:
            halo = self.spec.inputs[1].halo
            where = (image, block, row + halo.top, column + halo.left)
            added = [vector_load(self.residual, *where, lane + i) for i in starts]
            values = [value + more for value, more in zip(values, added, strict=True)]
        where = (image, block, row + y.halo.top, column + y.halo.left)
        if fills_one_tile(self.spec):
            values.append(broadcast(0.0))  # the other half of a block
        if len(values) == 1:
            vector_store(self.Y, apply_activation(values[0], self.activation, approximate=True), *where, lane)
        else:
            T.buffer_store(self.Y, self._activated_pair(*values), [*where, T.ramp(0, 1, BLOCK)])

    def _activated_pair(self, low: Expr, high: Expr) -> Expr:
        """A block of 32 output channels in bfloat16. A ReLU comes last: negative floats are negative as integers."""
        relu = self.activation == "relu"
        activation = "none" if relu else self.activation
        low, high = (apply_activation(value, activation, approximate=True) for value in (low, high))
        bits = float32_pair_to_bf16(low, high)
        if not relu:
            return bits
        positive = T.max(T.reinterpret("int16x32", bits), T.broadcast(T.int16(0), BLOCK))
        return T.reinterpret("uint16x32", positive)

"""Products and convolutions of 8-bit integers in AMX tiles: 64 products deep a step, sums in int32.

A register block is 32 rows x 32 columns in four accumulator tiles, as of bfloat16 (`matmul_amx`). Sums start from the
zero point's share, which a tile load with a stride of 0 brings to all rows. Those of a block leave the tiles through
memory and are finished by vectors between the steps of the next block.

Rows that fill whole steps are read where they lie; the last tile of a layer moves up and computes some rows twice.
Others, and the windows of a convolution, are copied to scratch memory first, a task's rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.amx import load_tile, multiply_int8_tiles, release_tiles, store_tile
from veltair.compiler.codegen.memory import allocate_scratch, prefetch
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.row_lanes import flatten
from veltair.compiler.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.quantised import QuantisedProductParameters
from veltair.compiler.kernels.int8.epilogue import PADDING, epilogue_weights
from veltair.compiler.kernels.int8.product_operands import ProductOperands, rows_and_width
from veltair.compiler.kernels.int8.starting_sums import load_start, starting_sums
from veltair.compiler.kernels.int8.window_rows import copy_rows, copy_windows
from veltair.compiler.kernels.matmul.amx_tiles import BLOCK, LEFT, RIGHT, TILE, configure_tiles

DEPTH = 64  # 8-bit values in a tile row: the products of one step of the reduction
QUAD = 4  # neighbours of the reduction that lie in one int32
MOST_COPIED = 1 << 19  # bytes of a task's copied rows: with the weights that they meet they stay in L2
FETCHED_STEPS = 16  # how far ahead of their first use weights are fetched: they come from memory
STEP_LINES = 2 * TILE  # of 64 bytes, of the weights of a step
TALL = (4, 2, 1, 8)  # blocks of rows of a task
TASKS = 4  # at least, where the layer has so many register blocks: they are shared among cores


def is_possible(spec: LayerSpec) -> bool:
    """Whether tiles can compute a layer: weights of 8 bits, and one group."""
    parameters = spec.parameters_as(QuantisedProductParameters)
    return not parameters.wide and parameters.groups == 1


def amx_points(spec: LayerSpec) -> list[Point]:
    """Points of a layer that is possible; the first is right for most layers."""
    rows, width = rows_and_width(spec.outputs[0])
    most = spec.most(rows)
    panels, blocks = -(-width // BLOCK), -(-most // BLOCK)
    depth = -(-len(spec.weights["weight"]) // DEPTH) * DEPTH if _is_copied(spec) else 0
    found: list[tuple[bool, int, Point]] = []
    for tall in TALL:
        if tall > 1 and (tall > blocks or tall * BLOCK * depth > MOST_COPIED):
            continue
        chunks = -(-blocks // tall)
        for taken in _shares(panels, chunks):
            groups = panels // taken
            copies = groups if depth else 1  # each group of panels copies the rows that it meets
            found.append((chunks * groups < TASKS, copies, {"unit": "amx", "blocks": tall, "panels": taken}))
    return [point for _, _, point in sorted(found, key=lambda each: each[:2])]


def _shares(panels: int, chunks: int) -> list[int]:
    """How many panels a task takes: divisors; first the most with which there are enough tasks, or the fewest.

    >>> _shares(64, 2), _shares(6, 8)
    ([32, 64, 16], [6, 3])
    """
    divisors = [n for n in range(panels, 0, -1) if panels % n == 0]
    at = next((i for i, n in enumerate(divisors) if chunks * (panels // n) >= TASKS), len(divisors) - 1)
    return list(dict.fromkeys((divisors[at], divisors[0], *divisors[at + 1 : at + 2])))


def build_amx_product(spec: LayerSpec, point: Point) -> Kernel:
    """The kernel of one of the `amx_points`."""
    packed, start = pack_int8_tiles(spec)
    weights: list[NDArray[Any]] = [packed, start, *epilogue_weights(spec, BLOCK)]

    def body(*buffers: Any) -> None:
        _TileCode(spec, point, buffers).emit()

    function = build_prim_func([*spec.inputs, *weights, spec.outputs[0]], body)
    most = spec.most(rows_and_width(spec.outputs[0])[0])
    blocks, panels = int(point["blocks"]), int(point["panels"])
    rows = min(blocks * BLOCK, most)
    block_size = panels * packed[0].nbytes + rows * (len(spec.weights["weight"]) + panels * BLOCK)
    parallelism = len(packed) // panels * -(-most // (blocks * BLOCK)) * 4
    return Kernel(function, tuple(weights), block_size, parallelism)


def pack_int8_tiles(spec: LayerSpec) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Weights (N/32, K/64, 2, 16, 16, 4): for each step two tiles of 16 quads x 16 columns; and what sums start from.

    That is minus the weights' sums, times the zero point where it is known before the layer runs.
    """
    weight, start = spec.weights["weight"], starting_sums(spec)
    padded = pad_axis(pad_axis(weight, 0, DEPTH), 1, BLOCK)
    steps = padded.reshape(len(padded) // DEPTH, TILE, QUAD, -1, 2, TILE)
    return np.ascontiguousarray(steps.transpose(3, 0, 4, 1, 5, 2)), pad_axis(start, 0, BLOCK).astype(np.int32)


def _is_copied(spec: LayerSpec) -> bool:
    window = spec.parameters_as(QuantisedProductParameters).window
    return bool(window and not window.is_point) or len(spec.weights["weight"]) % DEPTH != 0


class Block(NamedTuple):
    """A register block.

    >>> Block(panel=2, first=32).first
    32
    """

    panel: Expr  # which 32 columns
    first: Expr  # row of the task


class _TileCode:
    """Emits the code of a layer: tasks are groups of panels by chunks of the rows."""

    first: Expr  # row of the task
    count: Expr  # rows of the task
    left: Any  # where tiles of rows are loaded from, and the row there that is the task's first
    begin: Expr
    starts: Any  # what sums start from, and the panel whose numbers lie first
    sums: Any
    height: Expr  # of a tile of rows

    def __init__(self, spec: LayerSpec, point: Point, buffers: Sequence[Any]) -> None:
        self.spec, self.parameters = spec, spec.parameters_as(QuantisedProductParameters)
        self.step, self.taken = int(point["blocks"]) * BLOCK, int(point["panels"])
        self.width = spec.outputs[0].physical[-1]
        self.steps = -(-len(spec.weights["weight"]) // DEPTH)
        self.panels, self.copied = -(-self.width // BLOCK), _is_copied(spec)
        operands = ProductOperands.of(spec, buffers)
        self.X, self.W, self.start = operands.x, operands.weight, operands.start
        self.source, self.signed = flatten(buffers[0]) if self.copied else None, buffers[0].dtype == "int8"
        self.numbers, self.zero = operands.numbers, operands.zero
        self.total, self.epilogue = operands.total, operands.epilogue

    def emit(self) -> None:
        groups, chunks = self.panels // self.taken, T.ceildiv(self.total, self.step)
        with T.parallel(0, groups * chunks) as task:
            self.sums = allocate_scratch((2, TILE, BLOCK), "int32")
            configuration = allocate_scratch((64,), "uint8")
            group, chunk = T.bind(task // chunks), T.bind(task % chunks)
            self.first = T.bind(chunk * self.step)
            self.count = T.bind(T.min(self.step, self.total - self.first))
            self._take_rows()
            self._take_starts(group)
            configure_tiles(configuration, self.height)
            count = T.bind(T.ceildiv(self.count, BLOCK) * self.taken)

            def block(nth: Expr) -> Block:
                return Block(T.bind(group * self.taken + nth % self.taken), T.bind(nth // self.taken * BLOCK))

            with T.serial(0, count) as nth:
                self._accumulate(block(nth), nth, block(T.max(nth - 1, 0)))
            with T.serial(0, BLOCK) as n:
                self._finish_row(block(count - 1), n)
            release_tiles()

    def _take_rows(self) -> None:
        """Copy the task's rows where tiles cannot load them from the input."""
        if self.source is None:
            self.left, self.begin = self.X, self.first
            self.height = T.bind(T.min(self.total, TILE))
            return
        self.left, self.begin, self.height = None, T.int32(0), T.int32(TILE)
        window, x = self.parameters.window, self.spec.inputs[0]
        self.left = rows = allocate_scratch((self.step, self.steps * DEPTH), x.dtype)
        if window is None or window.is_point:
            copy_rows(self.source, rows, len(self.spec.weights["weight"]), self.first, self.count)
            return
        zero = T.cast(self.numbers[PADDING], "int32") if self.zero is None else self.zero[0]
        padding = T.bind(T.cast(zero, x.dtype))
        copy_windows(self.source, rows, padding, (x, self.spec.outputs[0]), window, self.first, self.count)

    def _take_starts(self, group: Expr) -> None:
        """What the sums of the task's columns start from."""
        self.starts, self.first_start = self.start, T.int32(0)
        if self.zero is None:
            return
        self.starts, self.first_start = allocate_scratch((self.taken * BLOCK,), "int32"), T.bind(group * self.taken)
        with T.serial(0, self.taken * (BLOCK // LANES)) as vector:
            value = load_start(self.start, self.first_start * BLOCK + vector * LANES, self.zero, shift=0)
            T.buffer_store(self.starts, value, [ramp(vector * LANES)])

    def _accumulate(self, block: Block, nth: Expr, before: Block) -> None:
        """The sums of a block; meanwhile the one before it is finished."""
        for register in range(4):
            column = (block.panel - self.first_start) * BLOCK + register % 2 * TILE
            load_tile(register, T.address_of(self.starts[column]), 0)
        rows = [T.bind(self._first_row(block, half)) for half in range(2)]
        stride, each = int(self.left.shape[1]), -(-BLOCK // self.steps)
        # A number of rows and not a branch: the compiler would make two loops of one with a branch.
        unfinished = T.bind(T.if_then_else(nth > 0, BLOCK, 0))
        fetched = T.bind(T.if_then_else(nth < self.taken, STEP_LINES, 0))
        with T.serial(0, self.steps) as k:
            with T.serial(0, fetched) as line:
                prefetch(self.W[block.panel, k + FETCHED_STEPS, 0, line, 0, 0])
            for half, row in enumerate(rows):
                load_tile(LEFT + half, T.address_of(self.left[row, k * DEPTH]), stride)
            for half in range(2):
                load_tile(RIGHT + half, T.address_of(self.W[block.panel, k, half, 0, 0, 0]), 64)
            for register in range(4):
                left, right = LEFT + register // 2, RIGHT + register % 2
                multiply_int8_tiles(register, left, right, signed=self.signed)
            with T.serial(0, T.max(T.min(each, unfinished - k * each), 0)) as i:
                self._finish_row(before, k * each + i)
        for register in range(4):
            address = T.address_of(self.sums[register // 2, 0, register % 2 * TILE])
            store_tile(register, address, BLOCK * 4)

    def _first_row(self, block: Block, half: int | Expr) -> Expr:
        """Where a tile of rows begins, in `left`."""
        row = self.begin + block.first + half * TILE
        return row if self.copied else T.max(T.min(row, self.total - TILE), 0)

    def _finish_row(self, block: Block, n: Expr) -> None:
        """The epilogue of the nth row of a block; behind the last row, that one is done again."""
        if self.copied:
            n = T.bind(T.min(n, self.count - block.first - 1))
        half, r = T.bind(n // TILE), T.bind(T.min(n % TILE, self.height - 1))
        row = T.bind(self._first_row(block, half) + r + (self.first if self.copied else 0))
        with T.serial(0, T.min(2, T.ceildiv(self.width - block.panel * BLOCK, TILE))) as tile:
            column = T.bind(block.panel * BLOCK + tile * TILE)
            self.epilogue.store(T.bind(self.sums[half, r, ramp(tile * TILE)]), row, column)

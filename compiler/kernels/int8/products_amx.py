"""Products and convolutions of 8-bit integers in AMX tiles: 64 products deep a step, sums in int32.

A register block is 32 rows x 32 columns in four accumulator tiles, as of bfloat16 (`matmul_amx`). Two of them side by
side are finished together, since their rows fill cache lines. Sums start from the zero point's share and the bias,
which a tile load with a stride of 0 brings to all rows. Those of a block leave the tiles through memory and are
finished by vectors between the steps of the next block.

A task either meets all its panels of weights with 32 rows before the next ones, and fetches the weights a little ahead
of their first use; or it meets all its rows with a panel, and fetches that of the next panel meanwhile.

Tiles find their rows in the input or in a task's copy of them (`tile_rows`, `image_rows`).
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
from veltair.compiler.kernels.int8.epilogue import PADDING, epilogue_weights
from veltair.compiler.kernels.int8.image_rows import GatheredRows, PaddedRows, WovenRows
from veltair.compiler.kernels.int8.product_operands import ProductOperands, rows_and_width
from veltair.compiler.kernels.int8.starting_sums import load_start, starting_sums
from veltair.compiler.kernels.int8.tile_points import is_copied, padded_image, panel_width
from veltair.compiler.kernels.int8.tile_rows import DEPTH, CopiedRows, RowsInPlace, TileRows
from veltair.compiler.kernels.matmul.amx_tiles import BLOCK, LEFT, RIGHT, TILE, configure_tiles

QUAD = 4  # neighbours of the reduction that lie in one int32
FETCHED_STEPS = 16  # how far ahead of their first use weights are fetched: they come from memory
STEP_LINES = 2 * TILE  # of 64 bytes, of the weights of a step
PACKED = 4  # vectors of sums that become 64 bytes


def build_amx_product(spec: LayerSpec, point: Point) -> Kernel:
    """The kernel of one of the `amx_points`."""
    packed, start = pack_int8_tiles(spec)
    weights: list[NDArray[Any]] = [packed, start, *epilogue_weights(spec, panel_width(spec))]

    def body(*buffers: Any) -> None:
        _TileCode(spec, point, buffers).emit()

    function = build_prim_func([*spec.inputs, *weights, spec.outputs[0]], body)
    most, panels = spec.most(rows_and_width(spec.outputs[0])[0]), int(point["panels"])
    if (image := padded_image(spec)) is not None:
        band = int(point["band"])
        rows, read = band * image.across, image.scratch(band)
    else:
        rows = min(int(point["rows"]), most)
        read = rows * len(spec.weights["weight"])
    columns = panels * panel_width(spec)
    block_size = columns // BLOCK * packed[0].nbytes + read + rows * columns
    return Kernel(function, tuple(weights), block_size, -(-len(packed) * BLOCK // columns) * -(-most // rows) * 4)


def pack_int8_tiles(spec: LayerSpec) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Weights (N/32, K/64, 2, 16, 16, 4): for each step two tiles of 16 quads x 16 columns; and the
    `starting_sums`. Of a convolution each stretch of a window fills steps of its own.
    """
    weight, start = spec.weights["weight"], starting_sums(spec)
    if (image := padded_image(spec)) is not None:
        weight = image.rows_of_taps(weight)
    padded = pad_axis(pad_axis(weight, 0, DEPTH), 1, BLOCK)
    steps = padded.reshape(len(padded) // DEPTH, TILE, QUAD, -1, 2, TILE)
    return np.ascontiguousarray(steps.transpose(3, 0, 4, 1, 5, 2)), pad_axis(start, 0, panel_width(spec)).astype(
        np.int32
    )


class Block(NamedTuple):
    """Two rows of tiles by the columns of a panel.

    >>> Block(panel=2, first=32, sums=0).first
    32
    """

    panel: Expr  # of columns
    first: Expr  # row of the task
    sums: Expr  # which of two buffers has them


class _TileCode:
    """Emits the code of a layer: tasks are groups of panels by chunks of the rows."""

    starts: Any  # what sums start from, and the panel whose numbers lie first
    sums: Any

    def __init__(self, spec: LayerSpec, point: Point, buffers: Sequence[Any]) -> None:
        self.spec, self.point, self.taken = spec, point, int(point["panels"])
        self.rows_inside = point.get("inside") == "rows"
        self.width, self.signed = spec.outputs[0].physical[-1], buffers[0].dtype == "int8"
        self.panel = panel_width(spec)
        self.panels = -(-self.width // self.panel)
        operands = ProductOperands.of(spec, buffers)
        self.W, self.start = operands.weight, operands.start
        self.numbers, self.zero, self.epilogue = operands.numbers, operands.zero, operands.epilogue
        self.steps = int(self.W.shape[1])
        self.rows = self._rows(buffers[0], operands)

    def _rows(self, x: Any, operands: ProductOperands) -> TileRows:
        image, total = padded_image(self.spec), operands.total
        if image is not None:
            rows = WovenRows if image.is_woven else GatheredRows if image.is_gathered else PaddedRows
            return rows(flatten(x), x.dtype, image, total, int(self.point["band"]))
        step = int(self.point["rows"])
        if is_copied(self.spec):
            return CopiedRows(flatten(x), self.spec, total, step)
        return RowsInPlace(operands.x, total, step)

    def emit(self) -> None:
        taken, chunks, rows = self.taken, self.rows.chunks, self.rows
        groups = self.panels // taken
        with T.parallel(0, groups * chunks) as task:
            self.sums = allocate_scratch((2, BLOCK, self.panel), "int32")
            configuration = allocate_scratch((64,), "uint8")
            group, chunk = T.bind(task // chunks), T.bind(task % chunks)
            rows.take(chunk, T.cast(self.numbers[PADDING], "int32") if self.zero is None else self.zero[0])
            self._take_starts(group)
            configure_tiles(configuration, rows.height)
            blocks = T.bind(T.ceildiv(rows.count, BLOCK))
            count = T.bind(blocks * taken)

            def block(nth: Expr) -> Block:
                row, panel = (nth % blocks, nth // blocks) if self.rows_inside else (nth // taken, nth % taken)
                return Block(T.bind(group * taken + panel), T.bind(row * BLOCK), T.bind(nth % 2))

            with T.serial(0, count) as nth:
                fetched = self._fetched(nth, blocks)
                self._accumulate(block(nth), nth, block(T.max(nth - 1, 0)), fetched)
            with T.serial(0, BLOCK) as n:
                self._finish_row(block(count - 1), n)
            release_tiles()

    def _take_starts(self, group: Expr) -> None:
        """What the sums of the task's columns start from."""
        self.starts, self.first_start = self.start, T.int32(0)
        if self.zero is None:
            return
        self.first_start = T.bind(group * self.taken)
        self.starts = allocate_scratch((self.taken * self.panel,), "int32")
        with T.serial(0, self.taken * (self.panel // LANES)) as vector:
            value = load_start(self.start, self.first_start * self.panel + vector * LANES, self.zero, shift=0)
            T.buffer_store(self.starts, value, [ramp(vector * LANES)])

    def _fetched(self, nth: Expr, blocks: Expr) -> tuple[Expr, Expr]:
        """Of the lines of each step's weights, the first that the nth block fetches, and how many."""
        if not self.rows_inside:
            return T.int32(0), T.bind(T.if_then_else(nth < self.taken, STEP_LINES, 0))
        each = T.bind(T.ceildiv(STEP_LINES, blocks))
        first = T.bind(nth % blocks * each)
        return first, T.bind(T.max(T.min(each, STEP_LINES - first), 0))

    def _accumulate(self, block: Block, nth: Expr, before: Block, fetched: tuple[Expr, Expr]) -> None:
        """The sums of a block; meanwhile the one before it is finished."""
        begins = [T.bind(self.rows.begin(block.first + half * TILE)) for half in range(2)]
        # Numbers of rows and not branches: the compiler would make two loops of one with a branch.
        unfinished = T.bind(T.if_then_else(nth > 0, BLOCK, 0))
        parts, most = self._parts(block), self.panel // BLOCK
        each = T.bind(T.if_then_else(parts == most, -(-BLOCK // (self.steps * most)), -(-BLOCK // self.steps)))
        with T.serial(0, parts) as part:
            columns = T.bind(block.panel * most + part)  # which 32
            for register in range(4):
                column = columns * BLOCK - self.first_start * self.panel + register % 2 * TILE
                load_tile(register, T.address_of(self.starts[column]), 0)
            with T.serial(0, self.steps) as k:
                ahead = (columns + most, k) if self.rows_inside else (columns, k + FETCHED_STEPS)
                with T.serial(0, fetched[1]) as line:
                    prefetch(self.W[*ahead, 0, fetched[0] + line, 0, 0])
                for half, begin in enumerate(begins):
                    load_tile(LEFT + half, self.rows.address(begin, k), self.rows.stride)
                for half in range(2):
                    load_tile(RIGHT + half, T.address_of(self.W[columns, k, half, 0, 0, 0]), 64)
                for register in range(4):
                    left, right = LEFT + register // 2, RIGHT + register % 2
                    multiply_int8_tiles(register, left, right, signed=self.signed)
                done = T.bind((part * self.steps + k) * each)
                with T.serial(0, T.max(T.min(each, unfinished - done), 0)) as i:
                    self._finish_row(before, done + i)
            for register in range(4):
                place = block.sums, register // 2 * TILE, part * BLOCK + register % 2 * TILE
                store_tile(register, T.address_of(self.sums[place]), self.panel * 4)

    def _parts(self, block: Block) -> Expr:
        """How many times 32 columns of the block there are."""
        most = self.panel // BLOCK
        if -(-self.width // BLOCK) % most == 0:
            return T.int32(most)
        return T.bind(T.min(most, T.ceildiv(self.width - block.panel * self.panel, BLOCK)))

    def _finish_row(self, block: Block, n: Expr) -> None:
        """The epilogue of the nth row of a block; behind the last row, that one is done again."""
        output, column = self.rows.output(block.first, n), T.bind(block.panel * self.panel)
        place, packed = T.bind(output.half * TILE + output.r), T.int32(0)
        vectors = T.min(self.panel // LANES, T.ceildiv(self.width - column, LANES))
        if output.inside is not None:
            vectors = T.bind(T.if_then_else(output.inside, vectors, 0))
        if self.panel == PACKED * LANES:
            packed = T.bind(T.min(vectors // PACKED, (self.width - column) // self.panel))
            with T.serial(0, packed):
                sums = [T.bind(self.sums[block.sums, place, ramp(i * LANES)]) for i in range(PACKED)]
                self.epilogue.store_packed(sums, output.row, column)
        if self.panel < PACKED * LANES or self.width % self.panel:
            with T.serial(0, vectors - packed * PACKED) as vector:
                sums = T.bind(self.sums[block.sums, place, ramp(vector * LANES)])
                self.epilogue.store(sums, output.row, T.bind(column + vector * LANES))

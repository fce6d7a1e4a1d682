"""How AMX tiles cover the outputs of a convolution: which output is which row of a tile, and where its inputs lie."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import index_in_register
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.kernels.conv.conv_geometry import ConvGeometry
from veltair.compiler.kernels.conv.conv_weights import folds_columns

TILE = 16  # rows of a tile: outputs
BLOCK = 32  # output channels of a block of the layout: two tiles
DEPTH = 32  # bfloat16 values in a tile row: products of one step


class TileMode(StrEnum):
    """Which outputs are the 16 rows of a tile. The values are those of `mode` in points and tuning records.

    >>> TileMode("flat") is TileMode.FLAT_PLANE
    True
    """

    # 16 places, a stride apart, of the haloed plane taken as one long row. What falls behind a row's last output is
    # computed and thrown away, which costs (W + halo) / W at stride 1 instead of 16 / (W mod 16).
    FLAT_PLANE = "flat"
    # 16 neighbours of one output row.
    ROW_SEGMENT = "row"
    # 16 outputs in a row that runs on over row ends. The inputs of each step are copied into that order before.
    GATHERED = "dense"
    # As GATHERED where the stride is not 1, else as FLAT_PLANE, in one stack of four tiles instead of two.
    TALL = "tall"
    # As ROW_SEGMENT, the lower half of a stack one output row below the upper: 2 x 2 of them are pooled.
    POOL_PAIRS = "pairs"


class StackOutput(NamedTuple):
    """One output of a stack of tiles.

    >>> StackOutput(sum_rows=[0, 1, 16, 17], row=0, column=3).column  # pooled 2 x 2
    3
    """

    sum_rows: list[Expr]  # rows of the stack's sums, of which the greatest counts
    row: Expr  # in the output tensor
    column: Expr


class TileCover:
    """A cover of the outputs of one image by stacks of `tiles` tiles, one below the other.

    With at most 16 output channels, stacks of all modes have four tiles::

        cover = TileCover(spec, TileMode.ROW_SEGMENT)
        cover.stacks  # how many stacks cover the image
        cover.input_address(X, image, step, u, v, stack, tile)  # what a tile of inputs is loaded from
        cover.nth_output(stack, n)  # where the nth output of a stack goes
    """

    def __init__(self, spec: LayerSpec, mode: TileMode) -> None:
        x, y = spec.inputs[0], spec.outputs[0]
        self.geometry = ConvGeometry.of_layer(spec)
        (oh, ow), stride = self.geometry.output, self.geometry.stride
        strided, pairs = stride.rows * stride.columns > 1, mode == TileMode.POOL_PAIRS
        self.mode = mode if mode != TileMode.TALL else TileMode.GATHERED if strided else TileMode.FLAT_PLANE
        self.folds_columns = folds_columns(spec)
        self.tiles = 4 if mode == TileMode.TALL or fills_one_tile(spec) else 2
        self.rows = self.tiles * TILE  # outputs of a stack, before any pool
        self.finished_outputs = self.rows // (4 if pairs else 1)  # of a stack, after any pool
        self.haloed_width = x.physical[3]
        self.pooled_height, self.pooled_width = y.shape[2:]  # of POOL_PAIRS
        # A window is 16 neighbouring outputs of one row.
        self.windows_per_row = -(-(min(ow, 2 * self.pooled_width) if pairs else ow) // TILE)
        self.windows_per_stack = self.tiles // 2  # on each of the two output rows of POOL_PAIRS
        self.stacks_per_row_pair = -(-self.windows_per_row // self.windows_per_stack)
        bare_input = x.physical[2:4] == (oh, ow)
        bare_output = all(t.physical[2:4] == (oh, ow) for t in (y, *spec.inputs[1:]))
        # Whether no halo lies between the rows of outputs, so that they are written as one long row.
        self.writes_long_row = bare_output and (
            self.mode == TileMode.GATHERED or (self.mode == TileMode.FLAT_PLANE and bare_input)
        )
        self.last_stack_overlaps = (
            self.mode == TileMode.FLAT_PLANE and self.writes_long_row and oh * ow >= self.rows
        )  # the one before it, instead of reaching past the end
        covered_rows = {
            TileMode.FLAT_PLANE: (oh - 1) * self.haloed_width + ow,
            TileMode.ROW_SEGMENT: oh * self.windows_per_row * TILE,
            TileMode.GATHERED: oh * ow,
            TileMode.POOL_PAIRS: self.pooled_height * self.stacks_per_row_pair * self.rows,
        }
        self.stacks = -(-covered_rows[self.mode] // self.rows)
        self.stride_bytes = 2 * DEPTH if self.mode == TileMode.GATHERED else stride.columns * x.block * 2

    def every_stack_has_outputs(self) -> bool:
        """Whether no stack falls between the last output of a row and the first one of the next."""
        return self.mode != TileMode.FLAT_PLANE or self.haloed_width - self.geometry.output.columns < self.rows

    def gathered_bytes(self, spec: LayerSpec) -> int:
        """Bytes of one image's inputs in the order of its outputs; 0 where they are read as they lie."""
        steps = self.geometry.kernel.rows * self.geometry.kernel.columns * spec.inputs[0].physical[1]
        return steps * self.stacks * self.rows * DEPTH * 2 if self.mode == TileMode.GATHERED else 0

    def input_address(self, X: Any, image: Expr, block: Expr, u: Expr, v: Expr, stack: Expr, tile: int) -> Expr:
        """The first input of a tile at the step of one block of input channels and tap (u, v) of the kernel.

        The tile runs on over row ends.
        """
        stride, dilation, (top, left) = self.geometry.stride, self.geometry.dilation, self.geometry.first_tap
        if self.mode == TileMode.GATHERED:
            return T.address_of(X[image, block, u, v, stack * self.rows + tile * TILE, 0])
        if self.mode == TileMode.FLAT_PLANE:
            place = (self._first_place(stack) + tile * TILE) * stride.columns + v * dilation.columns + left
            return T.address_of(X[image, block, u * dilation.rows + top, place, 0])
        output_row, window = self._window(stack, tile)
        row = output_row * stride.rows + u * dilation.rows + top
        column = window * TILE * stride.columns + left
        if self.folds_columns:
            return T.address_of(X[image, 0, row, column, v * DEPTH])
        return T.address_of(X[image, block, row, column + v * dilation.columns, 0])

    def _first_place(self, stack: Expr) -> Expr:
        """The place of a stack's first output in one long row."""
        if self.last_stack_overlaps:
            return T.min(stack * self.rows, self.geometry.output.rows * self.geometry.output.columns - self.rows)
        return stack * self.rows

    def _window(self, stack: Expr, tile: int) -> tuple[Expr, Expr]:
        """The output row and the window in it that a tile covers."""
        if self.mode == TileMode.POOL_PAIRS:
            pair, first = stack // self.stacks_per_row_pair, stack % self.stacks_per_row_pair
            row = T.min(pair * 2 + tile // self.windows_per_stack, self.geometry.output.rows - 1)
            window = first * self.windows_per_stack + tile % self.windows_per_stack
            return row, T.min(window, self.windows_per_row - 1)
        # A last stack repeats its last tile.
        window = T.min(stack * self.tiles + tile, self.geometry.output.rows * self.windows_per_row - 1)
        return window // self.windows_per_row, window % self.windows_per_row

    def nth_output(self, stack: Expr, n: Expr) -> StackOutput:
        """The nth output of a stack.

        Rows of tiles that are no outputs, behind a row's end, give its last output again, or the next row's first:
        that costs less than a branch.
        """
        begin, place = T.bind(stack * self.rows), T.bind(stack * self.rows + n)
        if self.last_stack_overlaps:
            return StackOutput([n], 0, T.bind(self._first_place(stack) + n))
        if self.mode == TileMode.POOL_PAIRS:
            return self._pooled_output(stack, n)
        if self.mode == TileMode.ROW_SEGMENT:
            return self._segment_output(stack, n)
        if self.mode == TileMode.GATHERED or self.writes_long_row:
            return self._long_row_output(begin, place)
        return self._plane_output(begin, place)

    def _pooled_output(self, stack: Expr, n: Expr) -> StackOutput:
        first = T.bind(stack % self.stacks_per_row_pair * self.windows_per_stack * TILE)
        column = T.bind(T.min(first // 2 + n, self.pooled_width - 1))
        left = T.bind(column * 2 - first)
        right = T.bind(T.min(left + 1, self.geometry.output.columns - 1 - first))
        below = self.windows_per_stack * TILE
        row = T.bind(stack // self.stacks_per_row_pair)
        return StackOutput([left, right, left + below, right + below], row, column)

    def _segment_output(self, stack: Expr, n: Expr) -> StackOutput:
        (oh, ow), windows = self.geometry.output, self.windows_per_row
        window = T.bind(T.min(stack * self.tiles + n // TILE, oh * windows - 1))
        first = T.bind(window % windows * TILE)
        column = T.bind(T.min(first + n % TILE, ow - 1))
        return StackOutput([n // TILE * TILE + column - first], window // windows, column)

    def _long_row_output(self, begin: Expr, place: Expr) -> StackOutput:
        oh, ow = self.geometry.output
        place = T.bind(T.min(place, oh * ow - 1))
        if self.writes_long_row:
            return StackOutput([place - begin], 0, place)
        return StackOutput([place - begin], *_row_and_column(index_in_register(place), ow))

    def _plane_output(self, begin: Expr, place: Expr) -> StackOutput:
        (oh, ow), width = self.geometry.output, self.haloed_width
        behind = T.bind(begin % width)
        first = T.bind(begin + T.Select(behind < ow, 0, width - behind))
        place = place - T.max(place % width - (ow - 1), 0)
        place = index_in_register(T.max(T.min(place, (oh - 1) * width + ow - 1), first))
        return StackOutput([place - begin], *_row_and_column(place, width))


def _row_and_column(place: Expr, width: int) -> tuple[Expr, Expr]:
    return index_in_register(T.truncdiv(place, width)), index_in_register(T.truncmod(place, width))


def fills_one_tile(spec: LayerSpec) -> bool:
    """Whether the output channels fill no more than one tile."""
    return spec.outputs[0].shape[1] <= TILE

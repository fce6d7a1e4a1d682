"""What lies in the lanes of a recurrent kernel's vectors: 16 rows of the batch, or 16 units of one row.

With rows in the lanes a product with a weight is one multiply-add of 16 rows, however few units there are; with units
in the lanes nothing is lost where there are few rows. Both give a task the same interface: tiles of rows, whose states
are lines of one vector each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import masked_load, vector_load, vector_store
from veltair.compiler.codegen.multiply_add import broadcast_input
from veltair.compiler.codegen.row_lanes import flatten_to_rows, load_transposed, store_transposed
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.sequence import Direction, RecurrentParameters, SequenceOrder
from veltair.compiler.kernels.recurrent.state_lines import StateLines


class SequenceExtents(NamedTuple):
    """The extents of a recurrent layer.

    ::

        SequenceExtents.of_layer(spec).steps
    """

    rows: int  # of the batch
    steps: int
    inputs: int  # width of x, or of the projected inputs
    hidden: int  # units

    @classmethod
    def of_layer(cls, spec: LayerSpec) -> SequenceExtents:
        first, second, inputs = spec.inputs[0].shape
        hidden = spec.weights["recurrent"].shape[0]
        if spec.parameters_as(RecurrentParameters).x_order is SequenceOrder.ROWS_FIRST:
            return cls(first, second, inputs, hidden)
        return cls(second, first, inputs, hidden)


class Place(NamedTuple):
    """Where values of a tile's rows lie in a tensor.

    ::

        Place(rows, first=step * count, column=0)
    """

    tensor: Any  # a view of its memory in rows
    first: Expr  # the row of it that belongs to row 0 of the batch
    column: Expr


class Lanes(ABC):
    """What both kinds of lanes have in common. A tile's first row is set by the task, and so is the direction.

    ::

        lanes = RowLanes(spec, buffers)
        lanes.first_row, lanes.direction = first_row, T.int32(0)
        lanes.read(tile)
    """

    tile_rows: int  # rows of the batch in a tile
    width: int  # units of a line

    def __init__(self, spec: LayerSpec, buffers: Mapping[str, Any]) -> None:
        self.parameters, self.buffers = spec.parameters_as(RecurrentParameters), buffers
        _, self.steps, self.inputs, self.hidden = SequenceExtents.of_layer(spec)
        self.rows_first = self.parameters.x_order is SequenceOrder.ROWS_FIRST
        self.rows = buffers[self.parameters.reads[0]].shape[0 if self.rows_first else 1]
        self.first_row: Expr = T.int32(0)  # of the task
        self.direction: Expr = T.int32(0)  # 1 for the second of two directions
        self.have_lengths = "lengths" in buffers

    @property
    def backward(self) -> Expr:
        """1 where the steps run from the last to the first."""
        if self.parameters.direction is Direction.BIDIRECTIONAL:
            return self.direction
        return T.int32(1 if self.parameters.direction is Direction.REVERSE else 0)

    @abstractmethod
    def input(self, tile: int, step: Expr, k: Expr) -> Expr:
        """Input k of a step, for all lanes."""

    @abstractmethod
    def score(self, tile: int, step: Expr) -> Expr:
        """The score of a step, for all lanes."""

    @abstractmethod
    def state(self, state: StateLines, place: Expr, first: Expr, k: Expr, taken: int) -> Expr:
        """Unit k of a place's state that begins at a line, for all lanes; in bfloat16, the k-th pair of units, or the
        last one alone where `taken` is 1."""

    @abstractmethod
    def weight(self, packed: Any, index: tuple[Expr, ...], line: int) -> Expr:
        """The weights of a line of units, for all lanes."""

    @abstractmethod
    def read(self, tiles: int) -> None:
        """Take memory for what so many tiles of a task read of the sequence, and load it."""

    @abstractmethod
    def load_state(self, tile: int, source: Place, state: StateLines, place: Expr, line: Expr) -> None:
        """Load a state of a tile's rows, as lines of a place from `line` on."""

    @abstractmethod
    def store_state(self, tile: int, state: StateLines, place: Expr, line: Expr, target: Place) -> None:
        """The reverse of `load_state`."""

    @abstractmethod
    def runs(self, tile: int, step: Expr) -> Expr:
        """Which rows are longer than `step`."""

    def row(self, tile: int) -> Expr:
        """The first row of a tile."""
        return self.first_row + tile * self.tile_rows


class RowLanes(Lanes):
    """Lanes are 16 rows of the batch. Sequences are transposed into that form 16 by 16 in registers when they are read,
    and back when they are written.

    ::

        RowLanes(spec, buffers).tile_rows  # 16
    """

    tile_rows, width = LANES, 1

    def read(self, tiles: int) -> None:
        if self.have_lengths:
            self.lengths = T.alloc_buffer((tiles, 1, LANES), "float32", scope="global")
        self.x = T.alloc_buffer((tiles, self.steps * self.inputs, LANES), "float32", scope="global")
        if "scores" in self.buffers:
            self.scores = T.alloc_buffer((tiles, self.steps, LANES), "float32", scope="global")
        for tile in range(tiles):
            self._read_tile(tile)

    def input(self, tile: int, step: Expr, k: Expr) -> Expr:
        return vector_load(self.x, tile, step * self.inputs + k, 0)

    def score(self, tile: int, step: Expr) -> Expr:
        return vector_load(self.scores, tile, step, 0)

    def state(self, state: StateLines, place: Expr, first: Expr, k: Expr, taken: int) -> Expr:
        return state.load(place, first + k)

    def weight(self, packed: Any, index: tuple[Expr, ...], line: int) -> Expr:
        return T.broadcast(packed[(*index, line)], LANES)

    def _read_tile(self, tile: int) -> None:
        self._read_sequence(tile, "x", self.x, self.inputs)
        if "scores" in self.buffers:
            self._read_sequence(tile, "scores", self.scores, 1)
        if self.have_lengths:
            with T.serial(0, LANES) as lane:
                length = self.buffers["lengths"][T.min(self.row(tile) + lane, self.rows - 1)]
                T.buffer_store(self.lengths, T.cast(length, "float32"), [tile, 0, lane])

    def runs(self, tile: int, step: Expr) -> Expr:
        return T.broadcast(T.cast(step, "float32"), LANES) < vector_load(self.lengths, tile, 0, 0)

    def load_state(self, tile: int, source: Place, state: StateLines, place: Expr, line: Expr) -> None:
        self._load(tile, source, state.floats, line, self.hidden)

    def store_state(self, tile: int, state: StateLines, place: Expr, line: Expr, target: Place) -> None:
        self.store(tile, state, line, target, self.hidden)

    def store(self, tile: int, state: StateLines, line: Expr, target: Place, width: int) -> None:
        """Store `width` lines as columns of a tile's rows."""
        tensor, first, column = target
        store_transposed(state.floats, (tile, line), tensor, first, self.row(tile), self.rows, width, column)

    def _read_sequence(self, tile: int, name: str, lines: Any, width: int) -> None:
        if self.rows_first:
            whole = flatten_to_rows(self.buffers[name], self.steps * width)
            self._load(tile, Place(whole, 0, 0), lines, T.int32(0), self.steps * width)
            return
        source = flatten_to_rows(self.buffers[name], width)
        with T.serial(0, self.steps) as step:
            self._load(tile, Place(source, step * self.rows, 0), lines, step * width, width)

    def _load(self, tile: int, place: Place, lines: Any, line: Expr, width: int) -> None:
        tensor, first, column = place
        load_transposed(tensor, first, self.row(tile), self.rows, lines, (tile, line), width, column)


class UnitLanes(Lanes):
    """Lanes are 16 units of one row; a tile is one row. Lanes behind the last unit hold values that nothing reads.

    ::

        UnitLanes(spec, buffers).tile_rows  # 1
    """

    tile_rows, width = 1, LANES

    def read(self, tiles: int) -> None:
        """Rows are read where they lie."""

    def input(self, tile: int, step: Expr, k: Expr) -> Expr:
        return self._element("x", tile, step, k)

    def score(self, tile: int, step: Expr) -> Expr:
        return self._element("scores", tile, step, 0)

    def projected(self, tile: int, step: Expr, gate: int, line: Expr) -> Expr:
        """What the projected inputs of a step give a gate of a line of units. Gates are padded to whole lines."""
        lines = -(-self.hidden // LANES)
        first = (self.direction * self.parameters.cell.gates + gate) * lines
        return vector_load(self.buffers["sums"], *self._index(tile, step), (first + line) * LANES)

    def state(self, state: StateLines, place: Expr, first: Expr, k: Expr, taken: int) -> Expr:
        if state.bits is None:
            return T.broadcast(state.floats[place, first + k // LANES, k % LANES], LANES)
        return broadcast_input(state.bits, place, first * LANES + 2 * k, count=taken)

    def weight(self, packed: Any, index: tuple[Expr, ...], line: int) -> Expr:
        return vector_load(packed, *index, line * LANES)

    def runs(self, tile: int, step: Expr) -> Expr:
        return T.broadcast(step < self.buffers["lengths"][self._clamped(tile)], LANES)

    def load_state(self, tile: int, source: Place, state: StateLines, place: Expr, line: Expr) -> None:
        tensor, first, column = source
        row, whole = first + self._clamped(tile), self.hidden // LANES
        with T.serial(0, whole) as block:
            state.store(place, line + block, vector_load(tensor, row, column + block * LANES))
        if self.hidden % LANES:
            count = T.int32(self.hidden % LANES)
            state.store(place, line + whole, masked_load(tensor, row, column + whole * LANES, count=count))

    def store_state(self, tile: int, state: StateLines, place: Expr, line: Expr, target: Place) -> None:
        tensor, first, column = target
        row, whole = first + self.row(tile), self.hidden // LANES
        with when(self.row(tile) < self.rows):
            with T.serial(0, whole) as block:
                vector_store(tensor, state.load(place, line + block), row, column + block * LANES)
            with T.serial(0, self.hidden % LANES) as lane:
                value = state.floats[place, line + whole, lane]
                T.buffer_store(tensor, value, [row, column + whole * LANES + lane])

    def _element(self, name: str, tile: int, step: Expr, k: Expr | int) -> Expr:
        buffer, index = self.buffers[name], self._index(tile, step)
        return T.broadcast(buffer[(*index, k)] if len(buffer.shape) == 3 else buffer[index], LANES)

    def _index(self, tile: int, step: Expr) -> tuple[Expr, Expr]:
        row = self._clamped(tile)
        return (row, step) if self.rows_first else (step, row)

    def _clamped(self, tile: int) -> Expr:
        """The row of a tile, or the last row of the batch for a tile behind it."""
        return T.min(self.row(tile), self.rows - 1)

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
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.row_lanes import flatten_to_rows, load_transposed, store_transposed
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.sequence import RecurrentParameters, SequenceOrder


class SequenceExtents(NamedTuple):
    """The extents of a recurrent layer.

    ::

        SequenceExtents.of_layer(spec).steps
    """

    rows: int  # of the batch
    steps: int
    inputs: int  # width of x
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
        self.rows = buffers["x"].shape[0 if self.rows_first else 1]
        self.first_row: Expr = T.int32(0)  # of the task
        self.direction: Expr = T.int32(0)  # 1 for the second of two directions

    def allocate(self, tiles: int) -> None:
        """Take the memory for what a task reads."""
        self.lengths = (
            T.alloc_buffer((tiles, 1, LANES), "float32", scope="global") if "lengths" in self.buffers else None
        )

    @abstractmethod
    def input(self, tile: int, step: Expr, k: Expr) -> Expr:
        """Input k of a step, for all lanes."""

    @abstractmethod
    def score(self, tile: int, step: Expr) -> Expr:
        """The score of a step, for all lanes."""

    @abstractmethod
    def state(self, lines: Any, tile: int, first: Expr, k: Expr) -> Expr:
        """Unit k of the state that begins at a line, for all lanes."""

    @abstractmethod
    def weight(self, packed: Any, index: tuple[Expr, ...], line: int) -> Expr:
        """The weights of a line of units, for all lanes."""

    @abstractmethod
    def read(self, tile: int) -> None:
        """Load what a tile reads of the sequence."""

    @abstractmethod
    def load_state(self, tile: int, place: Place, lines: Any, line: Expr) -> None:
        """Load a state of a tile's rows, as lines from `line` on."""

    @abstractmethod
    def store_state(self, tile: int, lines: Any, line: Expr, place: Place) -> None:
        """The reverse of `load_state`."""

    def runs(self, tile: int, step: Expr) -> Expr:
        """Which rows are longer than `step`."""
        return T.broadcast(T.cast(step, "float32"), LANES) < vector_load(self.lengths, tile, 0, 0)

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

    def allocate(self, tiles: int) -> None:
        super().allocate(tiles)
        self.x = T.alloc_buffer((tiles, self.steps * self.inputs, LANES), "float32", scope="global")
        if "scores" in self.buffers:
            self.scores = T.alloc_buffer((tiles, self.steps, LANES), "float32", scope="global")

    def input(self, tile: int, step: Expr, k: Expr) -> Expr:
        return vector_load(self.x, tile, step * self.inputs + k, 0)

    def score(self, tile: int, step: Expr) -> Expr:
        return vector_load(self.scores, tile, step, 0)

    def state(self, lines: Any, tile: int, first: Expr, k: Expr) -> Expr:
        return vector_load(lines, tile, first + k, 0)

    def weight(self, packed: Any, index: tuple[Expr, ...], line: int) -> Expr:
        return T.broadcast(packed[(*index, line)], LANES)

    def read(self, tile: int) -> None:
        self._read_sequence(tile, "x", self.x, self.inputs)
        if "scores" in self.buffers:
            self._read_sequence(tile, "scores", self.scores, 1)
        if self.lengths is not None:
            with T.serial(0, LANES) as lane:
                length = self.buffers["lengths"][T.min(self.row(tile) + lane, self.rows - 1)]
                T.buffer_store(self.lengths, T.cast(length, "float32"), [tile, 0, lane])

    def load_state(self, tile: int, place: Place, lines: Any, line: Expr) -> None:
        self._load(tile, place, lines, line, self.hidden)

    def store_state(self, tile: int, lines: Any, line: Expr, place: Place) -> None:
        self.store(tile, lines, line, place, self.hidden)

    def store(self, tile: int, lines: Any, line: Expr, place: Place, width: int) -> None:
        """Store `width` lines as columns of a tile's rows."""
        tensor, first, column = place
        store_transposed(lines, (tile, line), tensor, first, self.row(tile), self.rows, width, column)

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

    def input(self, tile: int, step: Expr, k: Expr) -> Expr:
        return self._element("x", tile, step, k)

    def score(self, tile: int, step: Expr) -> Expr:
        return self._element("scores", tile, step, 0)

    def state(self, lines: Any, tile: int, first: Expr, k: Expr) -> Expr:
        return T.broadcast(lines[tile, first + k // LANES, k % LANES], LANES)

    def weight(self, packed: Any, index: tuple[Expr, ...], line: int) -> Expr:
        return vector_load(packed, *index, line * LANES)

    def read(self, tile: int) -> None:
        if self.lengths is not None:
            length = self.buffers["lengths"][self._clamped(tile)]
            vector_store(self.lengths, broadcast(T.cast(length, "float32")), tile, 0, 0)

    def load_state(self, tile: int, place: Place, lines: Any, line: Expr) -> None:
        tensor, first, column = place
        row, whole = first + self._clamped(tile), self.hidden // LANES
        with T.serial(0, whole) as block:
            vector_store(lines, vector_load(tensor, row, column + block * LANES), tile, line + block, 0)
        if self.hidden % LANES:
            vector_store(lines, broadcast(0.0), tile, line + whole, 0)
            with T.serial(0, self.hidden % LANES) as lane:
                value = tensor[row, column + whole * LANES + lane]
                T.buffer_store(lines, value, [tile, line + whole, lane])

    def store_state(self, tile: int, lines: Any, line: Expr, place: Place) -> None:
        tensor, first, column = place
        row, whole = first + self.row(tile), self.hidden // LANES
        with when(self.row(tile) < self.rows):
            with T.serial(0, whole) as block:
                vector_store(tensor, vector_load(lines, tile, line + block, 0), row, column + block * LANES)
            with T.serial(0, self.hidden % LANES) as lane:
                value = lines[tile, line + whole, lane]
                T.buffer_store(tensor, value, [row, column + whole * LANES + lane])

    def _element(self, name: str, tile: int, step: Expr, k: Expr | int) -> Expr:
        row = self._clamped(tile)
        index = (row, step) if self.rows_first else (step, row)
        buffer = self.buffers[name]
        return T.broadcast(buffer[(*index, k)] if len(buffer.shape) == 3 else buffer[index], LANES)

    def _clamped(self, tile: int) -> Expr:
        """The row of a tile, or the last row of the batch for a tile behind it."""
        return T.min(self.row(tile), self.rows - 1)

"""The states of a task's tiles between the steps, and how they come from and go to the layer's tensors.

Backwards, the steps run from the last to the first. A row keeps its first state behind its length, so that each begins
at its own end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.row_lanes import flatten_to_rows
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.graph.parameters.sequence import Cell, SequenceOrder
from veltair.compiler.kernels.recurrent.gate_weights import GateWeights
from veltair.compiler.kernels.recurrent.lanes import Lanes, Place, RowLanes


class Slots(NamedTuple):
    """A step, and the first lines of the states before and after it.

    ::

        memory.slots(position).before
    """

    step: Expr
    before: Expr
    after: Expr
    cell_before: Expr
    cell_after: Expr


class StateMemory:
    """Lines of states, of which each tile has those of all steps where the layer writes them, else two in turn. Made in
    the task, whose memory it takes.

    ::

        memory = StateMemory(lanes, weights, tiles=1, backward=T.int32(0))
        memory.read(tile=0)
    """

    def __init__(self, lanes: Lanes, weights: GateWeights, tiles: int, backward: Expr) -> None:
        """backward: 1 where the task goes from the last step to the first."""
        self.lanes, self.parameters, self.buffers, self.tiles = lanes, lanes.parameters, lanes.buffers, tiles
        self.lines, self.backward, self.count = weights.lines, backward, weights.directions
        self.keeps_all = "states" in self.buffers
        self.h = self._allocate((lanes.steps + 1 if self.keeps_all else 2) * self.lines)
        if weights.two_groups:
            self.update, self.reset_h = self._allocate(self.lines), self._allocate(self.lines)
        if weights.cell is Cell.LSTM:
            self.c = self._allocate(2 * self.lines)

    def _allocate(self, count: int) -> Any:
        """Memory for `count` lines of one vector for each tile."""
        return T.alloc_buffer((self.tiles, count, LANES), "float32", scope="global")

    def slots(self, position: Expr) -> Slots:
        """The step that is the `position`-th to run, and its states."""
        lines, last = self.lines, self.lanes.steps - 1
        step = T.bind(position + self.backward * (last - 2 * position))
        turns = (position % 2 * lines, (position + 1) % 2 * lines)
        kept = ((step + self.backward) * lines, (step + 1 - self.backward) * lines)
        return Slots(step, *map(T.bind, kept if self.keeps_all else turns), *map(T.bind, turns))

    def advance(self, tile: int, at: Slots, line: Expr, new: Expr, old: Expr | None = None) -> None:
        """Store the new state of a line of units; behind the length of a row it stays the old one."""
        if self.lanes.lengths is not None:
            old = old if old is not None else T.bind(vector_load(self.h, tile, at.before + line, 0))
            new = T.Select(self.lanes.runs(tile, at.step), T.bind(new), old)
        vector_store(self.h, new, tile, at.after + line, 0)

    def advance_cell(self, tile: int, at: Slots, line: Expr, new: Expr, old: Expr) -> None:
        if self.lanes.lengths is not None:
            new = T.Select(self.lanes.runs(tile, at.step), new, old)
        vector_store(self.c, new, tile, at.cell_after + line, 0)

    def read(self, tile: int) -> None:
        """Load the states before the first step, or set them to zero."""
        first = self.slots(T.int32(0))
        self._read_first(tile, "initial", self.h, first.before)
        if self.parameters.cell is Cell.LSTM:
            self._read_first(tile, "initial_cell", self.c, first.cell_before)

    def _read_first(self, tile: int, name: str, lines: Any, start: Expr) -> None:
        if name in self.buffers:
            self.lanes.load_state(tile, self._place_of_state(name), lines, start)
            return
        with T.serial(0, self.lines) as line:
            vector_store(lines, broadcast(0.0), tile, start + line, 0)

    def write(self, tile: int) -> None:
        """Store the outputs of a tile."""
        end = self.slots(T.int32(self.lanes.steps - 1))
        if "last" in self.buffers:
            self._write_last(tile, "last", self.h, end.after)
        if "last_cell" in self.buffers:
            self._write_last(tile, "last_cell", self.c, end.cell_after)
        if self.keeps_all:
            self._clear_behind_lengths(tile)
            self._write_states(tile)

    def _write_last(self, tile: int, name: str, lines: Any, start: Expr) -> None:
        if self.lanes.lengths is not None:
            self._clear(tile, lines, start, T.int32(0))  # a row without steps has zeros, as in ONNX Runtime
        self.lanes.store_state(tile, lines, start, self._place_of_state(name))

    def _place_of_state(self, name: str) -> Place:
        """Where the first or the last states of the task's direction lie."""
        return Place(flatten_to_rows(self.buffers[name], self.lanes.hidden), self.lanes.direction * self.lanes.rows, 0)

    def _clear_behind_lengths(self, tile: int) -> None:
        if self.lanes.lengths is None:
            return
        with T.serial(0, self.lanes.steps) as step:
            self._clear(tile, self.h, self._kept(step), step)

    def _clear(self, tile: int, lines: Any, start: Expr, step: Expr) -> None:
        """Set the state that begins at a line to zero for rows that are not longer than `step`."""
        with T.serial(0, self.lines) as line:
            value = T.Select(self.lanes.runs(tile, step), vector_load(lines, tile, start + line, 0), broadcast(0.0))
            vector_store(lines, value, tile, start + line, 0)

    def _write_states(self, tile: int) -> None:
        lanes, hidden, order = self.lanes, self.lanes.hidden, self.parameters.y_order
        states, direction = self.buffers["states"], lanes.direction
        if order is SequenceOrder.ROWS_FIRST and self.count == 1 and isinstance(lanes, RowLanes):
            width = lanes.steps * hidden  # of all steps at once: few units alone would fill no vector
            lanes.store(tile, self.h, self._kept(T.int32(0)), Place(flatten_to_rows(states, width), 0, 0), width)
            return
        with T.serial(0, lanes.steps) as step:
            if order is SequenceOrder.ROWS_FIRST:
                rows = flatten_to_rows(states, lanes.steps * self.count * hidden)
                place = Place(rows, 0, (step * self.count + direction) * hidden)
            elif order is SequenceOrder.STEPS_FIRST:
                rows = flatten_to_rows(states, self.count * hidden)
                place = Place(rows, step * lanes.rows, direction * hidden)
            else:
                rows = flatten_to_rows(states, hidden)
                place = Place(rows, (step * self.count + direction) * lanes.rows, 0)
            lanes.store_state(tile, self.h, self._kept(step), place)

    def _kept(self, step: Expr) -> Expr:
        """The first line of the state after a step."""
        return (step + 1 - self.backward) * self.lines

"""The states of a recurrent layer between the steps, and how they come from and go to the layer's tensors.

Backwards, the steps run from the last to the first. A row keeps its first state behind its length, so that each begins
at its own end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import masked_store
from veltair.compiler.codegen.row_lanes import flatten_to_rows
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.graph.parameters.sequence import Cell, SequenceOrder
from veltair.compiler.kernels.matmul.amx_tiles import TILE
from veltair.compiler.kernels.recurrent.gate_weights import GateGroup, GateWeights
from veltair.compiler.kernels.recurrent.lanes import Lanes, Place, RowLanes, UnitLanes
from veltair.compiler.kernels.recurrent.state_lines import StateLines


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
    """States of which two are kept in turn, before and after a step. Made where their memory is to live.

    ::

        memory = StateMemory(lanes, weights, places=1, narrow=False)
        memory.read(tile=0)
    """

    def __init__(self, lanes: Lanes, weights: GateWeights, places: int, narrow: bool, kept: int = 2) -> None:
        """places: tiles, or rows, whose states are kept. kept: states of each place."""
        self.lanes, self.parameters, self.buffers = lanes, lanes.parameters, lanes.buffers
        self.lines, self.count, self.two_groups = weights.lines, weights.directions, weights.two_groups
        self.slot = self.lines + (self.lines % 2 if narrow else 0)  # lines from a state to the next: whole tile rows
        self.h = StateLines(places, kept * self.slot, narrow)
        if self.two_groups:
            self.update = StateLines(places, self.lines, narrow=False)
            self.reset_h = StateLines(places, self.lines, narrow)
        if weights.cell is Cell.LSTM:
            self.c = StateLines(places, 2 * self.slot, narrow=False)

    def place(self, tile: int) -> Expr:
        """Where the states of a tile of the task are."""
        return T.int32(tile)

    def slots(self, position: Expr) -> Slots:
        """The step that is the `position`-th to run, and its states."""
        step = T.bind(position + self.lanes.backward * (self.lanes.steps - 1 - 2 * position))
        turns = tuple(map(T.bind, (position % 2 * self.slot, (position + 1) % 2 * self.slot)))
        return Slots(step, *turns, *turns)

    def multiplied(self, group: GateGroup, at: Slots) -> tuple[StateLines, Expr]:
        """The state that the weights of a group of gates are multiplied with, and its first line."""
        return (self.h, at.before) if group is GateGroup.GATES else (self.reset_h, T.int32(0))

    def advance(self, tile: int, at: Slots, line: Expr, new: Expr, old: Expr | None = None) -> None:
        """Store the new state of a line of units; behind the length of a row it stays the old one."""
        place = self.place(tile)
        if self.lanes.have_lengths:
            old = old if old is not None else T.bind(self.h.load(place, at.before + line))
            new = T.Select(self.lanes.runs(tile, at.step), T.bind(new), old)
        self.h.store(place, at.after + line, new)

    def advance_cell(self, tile: int, at: Slots, line: Expr, new: Expr, old: Expr) -> None:
        if self.lanes.have_lengths:
            new = T.Select(self.lanes.runs(tile, at.step), new, old)
        self.c.store(self.place(tile), at.cell_after + line, new)

    def read(self, tile: int) -> None:
        """Load the states before the first step, or set them to zero."""
        first = self.slots(T.int32(0))
        self._read_first(tile, "initial", self.h, first.before)
        if self.parameters.cell is Cell.LSTM:
            self._read_first(tile, "initial_cell", self.c, first.cell_before)

    def _read_first(self, tile: int, name: str, state: StateLines, start: Expr) -> None:
        if name in self.buffers:
            self.lanes.load_state(tile, self._in_tensor(name), state, self.place(tile), start)
            return
        with T.serial(0, self.lines) as line:
            state.store(self.place(tile), start + line, broadcast(0.0))

    def write(self, tile: int) -> None:
        """Store the last states of a tile."""
        end = self.slots(T.int32(self.lanes.steps - 1))
        if "last" in self.buffers:
            self._write_last(tile, "last", self.h, end.after)
        if "last_cell" in self.buffers:
            self._write_last(tile, "last_cell", self.c, end.cell_after)

    def _write_last(self, tile: int, name: str, state: StateLines, start: Expr) -> None:
        if self.lanes.have_lengths:
            self._clear(tile, state, start, T.int32(0))  # a row without steps has zeros, as in ONNX Runtime
        self.lanes.store_state(tile, state, self.place(tile), start, self._in_tensor(name))

    def _in_tensor(self, name: str) -> Place:
        """Where the first or the last states of the direction lie."""
        return Place(flatten_to_rows(self.buffers[name], self.lanes.hidden), self.lanes.direction * self.lanes.rows, 0)

    def in_states(self, step: Expr) -> Place:
        """Where the direction's states of a step lie among those of all steps."""
        lanes, hidden, states = self.lanes, self.lanes.hidden, self.buffers["states"]
        if self.parameters.y_order is SequenceOrder.ROWS_FIRST:
            rows = flatten_to_rows(states, lanes.steps * self.count * hidden)
            return Place(rows, 0, (step * self.count + lanes.direction) * hidden)
        if self.parameters.y_order is SequenceOrder.STEPS_FIRST:
            return Place(flatten_to_rows(states, self.count * hidden), step * lanes.rows, lanes.direction * hidden)
        return Place(flatten_to_rows(states, hidden), (step * self.count + lanes.direction) * lanes.rows, 0)

    def _clear(self, tile: int, state: StateLines, start: Expr, step: Expr) -> None:
        """Set the state that begins at a line to zero for rows that are not longer than `step`."""
        with T.serial(0, self.lines) as line:
            old = state.load(self.place(tile), start + line)
            state.store(self.place(tile), start + line, T.Select(self.lanes.runs(tile, step), old, broadcast(0.0)))


class TaskStates(StateMemory):
    """States of a task's own tiles: those of all steps where the layer writes them.

    ::

        memory = TaskStates(lanes, weights, tiles=1)
    """

    def __init__(self, lanes: Lanes, weights: GateWeights, tiles: int) -> None:
        self.keeps_all = "states" in lanes.buffers
        super().__init__(lanes, weights, tiles, narrow=False, kept=lanes.steps + 1 if self.keeps_all else 2)

    def slots(self, position: Expr) -> Slots:
        turns = super().slots(position)
        if not self.keeps_all:
            return turns
        backward, step = self.lanes.backward, turns.step
        before, after = (step + backward) * self.lines, (step + 1 - backward) * self.lines
        return turns._replace(before=T.bind(before), after=T.bind(after))

    def write(self, tile: int) -> None:
        super().write(tile)
        if not self.keeps_all:
            return
        if self.lanes.have_lengths:
            with T.serial(0, self.lanes.steps) as step:
                self._clear(tile, self.h, self._kept(step), step)
        self._write_states(tile)

    def _write_states(self, tile: int) -> None:
        lanes, rows_first = self.lanes, self.parameters.y_order is SequenceOrder.ROWS_FIRST
        if rows_first and self.count == 1 and isinstance(lanes, RowLanes):
            width = lanes.steps * lanes.hidden  # of all steps at once: few units alone would fill no vector
            lanes.store(tile, self.h, self._kept(T.int32(0)), self.in_states(T.int32(0)), width)
            return
        with T.serial(0, lanes.steps) as step:
            lanes.store_state(tile, self.h, self.place(tile), self._kept(step), self.in_states(step))

    def _kept(self, step: Expr) -> Expr:
        """The first line of the state after a step."""
        return (step + 1 - self.lanes.backward) * self.lines


class SharedStates(StateMemory):
    """States of all rows and directions, which all cores read at each step. Every step writes its own to the layer's
    tensor right away.

    ::

        memory = SharedStates(lanes, weights, most_rows=64, narrow=True)
    """

    def __init__(self, lanes: UnitLanes, weights: GateWeights, most_rows: int, narrow: bool) -> None:
        """most_rows: the rows of the greatest batch. narrow: in bfloat16, as AMX tiles can read it."""
        tile = TILE if narrow else 1
        self.places = -(-most_rows // tile) * tile  # of a direction
        super().__init__(lanes, weights, self.places * weights.directions, narrow)

    def place(self, tile: int) -> Expr:
        return self.lanes.direction * self.places + self.lanes.row(tile)

    def advance(self, tile: int, at: Slots, line: Expr, new: Expr, old: Expr | None = None) -> None:
        new = T.bind(new)
        super().advance(tile, at, line, new, old)
        if "states" not in self.buffers:
            return
        if self.lanes.have_lengths:
            new = T.Select(self.lanes.runs(tile, at.step), new, broadcast(0.0))
        tensor, first, left = self.in_states(at.step)
        place = first + self.lanes.row(tile), left + line * LANES
        masked_store(tensor, new, *place, width=self.lanes.hidden, left=left)

    def read_all(self) -> None:
        """`read` for all rows of all directions."""
        for _ in self._each_row():
            if self.lines % 2:  # tiles reach behind the last line
                self.h.clear(self.place(0))
                if self.two_groups:
                    self.reset_h.clear(self.place(0))
            self.read(0)

    def write_all(self) -> None:
        """`write` for all rows of all directions."""
        for _ in self._each_row():
            self.write(0)

    def _each_row(self) -> Iterator[None]:
        """The code of one row and direction, to which the lanes are set."""
        if self.count == 1:
            with T.serial(0, self.lanes.rows) as self.lanes.first_row:
                yield
            return
        with T.serial(0, self.count) as self.lanes.direction, T.serial(0, self.lanes.rows) as self.lanes.first_row:
            yield

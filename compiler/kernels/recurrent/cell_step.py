"""A step of a recurrent cell: the new states of a block of units from the sums of their gates."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.memory import vector_in_register
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.graph.parameters.sequence import Cell
from veltair.compiler.kernels.recurrent.gate_sums import GateSums
from veltair.compiler.kernels.recurrent.gate_weights import (
    CANDIDATE,
    CANDIDATE_STATE,
    CELL,
    FORGET,
    INPUT,
    OUTPUT,
    RESET,
    UPDATE,
    GateGroup,
)
from veltair.compiler.kernels.recurrent.lanes import Lanes
from veltair.compiler.kernels.recurrent.state_memory import Slots, StateMemory


class CellStep:
    """Emits one step of all blocks of units that the sums go through.

    ::

        CellStep(lanes, sums, memory).emit(position)
    """

    def __init__(self, lanes: Lanes, sums: GateSums, memory: StateMemory) -> None:
        self.lanes, self.sums, self.memory = lanes, sums, memory
        self.weights, self.scored = sums.weights, "scores" in lanes.buffers

    def emit(self, position: Expr) -> None:
        """The `position`-th step to run."""
        emit = {Cell.GRU: self._emit_gru, Cell.LSTM: self._emit_lstm, Cell.RNN: self._emit_rnn}[self.weights.cell]
        for at, line in self.sums.of_blocks(GateGroup.GATES, self.memory, position):
            emit(at, line)
        if self.weights.two_groups:
            for at, line in self.sums.of_blocks(GateGroup.CANDIDATE, self.memory, position):
                self._emit_gru_candidate(at, line)

    def _gate(self, value: Expr) -> Expr:
        return vector_in_register(apply_activation(value, self.lanes.parameters.activations[0]))

    def _candidate(self, value: Expr) -> Expr:
        return vector_in_register(apply_activation(value, self.lanes.parameters.activations[1]))

    def _output(self, cell: Expr) -> Expr:
        return vector_in_register(apply_activation(cell, self.lanes.parameters.activations[2]))

    def _emit_gru(self, at: Slots, line: Expr) -> None:
        """Reset and update of a block of units; their new state as well where the reset comes after the product."""
        after, memory = self.weights.reset_after, self.memory
        for u in range(self.weights.units):
            for tile in range(self.sums.tiles):
                reset, update = (self._gate(self.sums.sum(gate, u, tile)) for gate in (RESET, UPDATE))
                old = T.bind(memory.h.load(memory.place(tile), at.before + line + u))
                if self.scored:
                    update = T.bind(update - update * self.lanes.score(tile, at.step))
                if after:
                    inner = self.sums.sum(CANDIDATE, u, tile)
                    candidate = self._candidate(inner + reset * self.sums.sum(CANDIDATE_STATE, u, tile))
                    memory.advance(tile, at, line + u, candidate + update * (old - candidate), old)
                else:
                    memory.reset_h.store(memory.place(tile), line + u, reset * old)
                    memory.update.store(memory.place(tile), line + u, update)

    def _emit_gru_candidate(self, at: Slots, line: Expr) -> None:
        """The new state of a block of units from the gates of all units."""
        memory = self.memory
        for u in range(self.weights.units):
            for tile in range(self.sums.tiles):
                candidate = self._candidate(self.sums.sum(0, u, tile))
                old = T.bind(memory.h.load(memory.place(tile), at.before + line + u))
                update = memory.update.load(memory.place(tile), line + u)
                memory.advance(tile, at, line + u, candidate + update * (old - candidate), old)

    def _emit_lstm(self, at: Slots, line: Expr) -> None:
        memory = self.memory
        for u in range(self.weights.units):
            for tile in range(self.sums.tiles):
                given, out, forget = (self._gate(self.sums.sum(g, u, tile)) for g in (INPUT, OUTPUT, FORGET))
                candidate = self._candidate(self.sums.sum(CELL, u, tile))
                old_cell = T.bind(memory.c.load(memory.place(tile), at.cell_before + line + u))
                cell = vector_in_register(forget * old_cell + given * candidate)
                memory.advance_cell(tile, at, line + u, cell, old_cell)
                memory.advance(tile, at, line + u, out * self._output(cell))

    def _emit_rnn(self, at: Slots, line: Expr) -> None:
        for u in range(self.weights.units):
            for tile in range(self.sums.tiles):
                self.memory.advance(tile, at, line + u, self._candidate(self.sums.sum(0, u, tile)))

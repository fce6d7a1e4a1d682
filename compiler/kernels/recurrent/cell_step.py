"""A step of a recurrent cell: the new states of a block of units from the sums of their gates."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.memory import vector_in_register, vector_load, vector_store
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.graph.parameters.sequence import Cell
from veltair.compiler.kernels.recurrent.gate_products import GateProducts
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
    """Emits one step of all units of a task's tiles.

    ::

        CellStep(lanes, products, memory).emit(memory.slots(position))
    """

    def __init__(self, lanes: Lanes, products: GateProducts, memory: StateMemory) -> None:
        self.lanes, self.products, self.memory = lanes, products, memory
        self.weights, self.scored = products.weights, "scores" in lanes.buffers

    def emit(self, at: Slots) -> None:
        emit = {Cell.GRU: self._emit_gru, Cell.LSTM: self._emit_lstm, Cell.RNN: self._emit_rnn}[self.weights.cell]
        with self.products.loop_over_blocks() as (block, line):
            emit(at, block, line)
        if self.weights.two_groups:
            with self.products.loop_over_blocks() as (block, line):
                self._emit_gru_candidate(at, block, line)

    def _gate(self, value: Expr) -> Expr:
        return vector_in_register(apply_activation(value, self.lanes.parameters.activations[0]))

    def _candidate(self, value: Expr) -> Expr:
        return vector_in_register(apply_activation(value, self.lanes.parameters.activations[1]))

    def _output(self, cell: Expr) -> Expr:
        return vector_in_register(apply_activation(cell, self.lanes.parameters.activations[2]))

    def _sum(self, group: GateGroup, at: Slots, lines: Any, first: Expr, block: Expr, gates: tuple[int, ...]) -> None:
        self.products.start(group, at.step, block)
        self.products.add_state(group, lines, first, block, gates)

    def _emit_gru(self, at: Slots, block: Expr, line: Expr) -> None:
        """Reset and update of a block of units; their new state as well where the reset comes after the product."""
        after, memory = self.weights.reset_after, self.memory
        gates = (RESET, UPDATE, CANDIDATE_STATE) if after else (RESET, UPDATE)
        self._sum(GateGroup.GATES, at, memory.h, at.before, block, gates)
        for u in range(self.weights.units):
            for tile in range(self.products.tiles):
                reset, update = (self._gate(self.products.sum(gate, u, tile)) for gate in (RESET, UPDATE))
                old = T.bind(vector_load(memory.h, tile, at.before + line + u, 0))
                if self.scored:
                    update = T.bind(update - update * self.lanes.score(tile, at.step))
                if after:
                    inner = self.products.sum(CANDIDATE, u, tile)
                    candidate = self._candidate(inner + reset * self.products.sum(CANDIDATE_STATE, u, tile))
                    memory.advance(tile, at, line + u, candidate + update * (old - candidate), old)
                else:
                    vector_store(memory.reset_h, reset * old, tile, line + u, 0)
                    vector_store(memory.update, update, tile, line + u, 0)

    def _emit_gru_candidate(self, at: Slots, block: Expr, line: Expr) -> None:
        """The new state of a block of units from the gates of all units."""
        memory = self.memory
        self._sum(GateGroup.CANDIDATE, at, memory.reset_h, T.int32(0), block, (0,))
        for u in range(self.weights.units):
            for tile in range(self.products.tiles):
                candidate = self._candidate(self.products.sum(0, u, tile))
                old = T.bind(vector_load(memory.h, tile, at.before + line + u, 0))
                update = vector_load(memory.update, tile, line + u, 0)
                memory.advance(tile, at, line + u, candidate + update * (old - candidate), old)

    def _emit_lstm(self, at: Slots, block: Expr, line: Expr) -> None:
        memory = self.memory
        self._sum(GateGroup.GATES, at, memory.h, at.before, block, (INPUT, OUTPUT, FORGET, CELL))
        for u in range(self.weights.units):
            for tile in range(self.products.tiles):
                given, out, forget = (self._gate(self.products.sum(g, u, tile)) for g in (INPUT, OUTPUT, FORGET))
                candidate = self._candidate(self.products.sum(CELL, u, tile))
                old_cell = T.bind(vector_load(memory.c, tile, at.cell_before + line + u, 0))
                cell = vector_in_register(forget * old_cell + given * candidate)
                memory.advance_cell(tile, at, line + u, cell, old_cell)
                memory.advance(tile, at, line + u, out * self._output(cell))

    def _emit_rnn(self, at: Slots, block: Expr, line: Expr) -> None:
        self._sum(GateGroup.GATES, at, self.memory.h, at.before, block, (0,))
        for u in range(self.weights.units):
            for tile in range(self.products.tiles):
                self.memory.advance(tile, at, line + u, self._candidate(self.products.sum(0, u, tile)))

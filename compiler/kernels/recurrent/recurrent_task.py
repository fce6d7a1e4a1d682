"""The code of a parallel task of a gated recurrent unit: some tiles of 16 rows through all steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.row_lanes import flatten_to_rows, load_transposed, store_transposed
from veltair.compiler.codegen.vector_math import sigmoid, tanh
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.graph.layer_spec import LayerSpec, Point
from veltair.compiler.graph.parameters.sequence import RecurrentParameters, SequenceOrder
from veltair.compiler.kernels.recurrent.gate_products import GateProducts
from veltair.compiler.kernels.recurrent.gate_weights import (
    CANDIDATE,
    CANDIDATE_STATE,
    RESET,
    UPDATE,
    GateGroup,
    GateWeights,
)


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


class RecurrentTask:
    """Emits the code of a layer. Lanes are rows of the batch, so a tensor of a tile is a buffer of lines of 16 rows.

    ::

        RecurrentTask(spec, point, weights, buffers).emit()  # buffers: by the names of inputs, weights and outputs
    """

    def __init__(self, spec: LayerSpec, point: Point, weights: GateWeights, buffers: Mapping[str, Any]) -> None:
        self.parameters, self.weights, self.buffers = spec.parameters_as(RecurrentParameters), weights, buffers
        self.tiles, self.hoisted = int(point["tiles"]), bool(point["hoisted"])
        _, self.steps, self.inputs, self.hidden = SequenceExtents.of_layer(spec)
        self.rows_first = self.parameters.x_order is SequenceOrder.ROWS_FIRST
        self.rows = buffers["x"].shape[0 if self.rows_first else 1]
        self.slots = self.steps + 1 if "states" in buffers else 2  # of states, the first one's included

    def emit(self) -> None:
        with T.parallel(0, T.ceildiv(self.rows, self.tiles * LANES)) as task:
            self.first_row = T.bind(task * (self.tiles * LANES))
            self._allocate()
            for tile in range(self.tiles):
                self._read(tile)
            if self.hoisted:
                self.products.hoist()
            with T.serial(0, self.steps) as step:
                with self.products.loop_over_blocks() as (block, unit):
                    self._emit_gates(step, block, unit)
                if not self.weights.reset_after:
                    with self.products.loop_over_blocks() as (block, unit):
                        self._emit_candidate(step, block, unit)
            for tile in range(self.tiles):
                self._write(tile)

    def _allocate(self) -> None:
        self.x = self._lines(self.steps * self.inputs)
        self.h = self._lines(self.slots * self.hidden)
        self.update, self.reset_h = self._lines(self.hidden), self._lines(self.hidden)
        self.products = GateProducts(self.weights, self.buffers, self.x, self.steps, self.tiles, self.hoisted)
        self.scores = self._lines(self.steps) if "scores" in self.buffers else None
        self.lengths = self._lines(1) if "lengths" in self.buffers else None

    def _lines(self, count: int) -> Any:
        """For each tile, `count` lines of one vector of 16 rows."""
        return T.alloc_buffer((self.tiles, count, LANES), "float32", scope="global")

    # One step.

    def _emit_gates(self, step: Expr, block: Expr, unit: Expr) -> None:
        """Reset and update of a block of units; their new state as well where the reset comes after the product."""
        before = T.bind(self._slot(step))
        after = self.weights.reset_after
        gates = (RESET, UPDATE, CANDIDATE_STATE) if after else (RESET, UPDATE)
        self.products.start(GateGroup.GATES, step, block)
        self.products.add_state(GateGroup.GATES, self.h, before, block, gates)
        for u in range(self.weights.units):
            for tile in range(self.tiles):
                reset, update = (sigmoid(self.products.sum(gate, u, tile)) for gate in (RESET, UPDATE))
                old = T.bind(vector_load(self.h, tile, before + unit + u, 0))
                if self.scores is not None:
                    update = T.bind(update - update * vector_load(self.scores, tile, step, 0))
                if after:
                    inner = self.products.sum(CANDIDATE, u, tile)
                    candidate = tanh(inner + reset * self.products.sum(CANDIDATE_STATE, u, tile))
                    self._advance(tile, step, unit + u, old, update, candidate)
                else:
                    vector_store(self.reset_h, reset * old, tile, unit + u, 0)
                    vector_store(self.update, update, tile, unit + u, 0)

    def _emit_candidate(self, step: Expr, block: Expr, unit: Expr) -> None:
        """The new state of a block of units from the gates of all units."""
        before = T.bind(self._slot(step))
        self.products.start(GateGroup.CANDIDATE, step, block)
        self.products.add_state(GateGroup.CANDIDATE, self.reset_h, T.int32(0), block, (0,))
        for u in range(self.weights.units):
            for tile in range(self.tiles):
                candidate = tanh(self.products.sum(0, u, tile))
                old = T.bind(vector_load(self.h, tile, before + unit + u, 0))
                self._advance(tile, step, unit + u, old, vector_load(self.update, tile, unit + u, 0), candidate)

    def _advance(self, tile: int, step: Expr, unit: Expr, old: Expr, update: Expr, candidate: Expr) -> None:
        """Store the new state of a unit; behind the length of a row it stays the old one."""
        candidate = T.bind(candidate)
        new = candidate + update * (old - candidate)
        if self.lengths is not None:
            new = T.Select(self._runs(tile, step), T.bind(new), old)
        vector_store(self.h, new, tile, self._slot(step + 1) + unit, 0)

    def _runs(self, tile: int, step: Expr) -> Expr:
        """Which rows are longer than `step`."""
        return T.broadcast(T.cast(step, "float32"), LANES) < vector_load(self.lengths, tile, 0, 0)

    def _slot(self, step: Expr) -> Expr:
        """The first line of the states before a step."""
        return (step if "states" in self.buffers else step % 2) * self.hidden

    # Inputs and outputs.

    def _read(self, tile: int) -> None:
        """Transpose what a tile reads into lines."""
        for name, lines, width in (("x", self.x, self.inputs), ("scores", self.scores, 1)):
            if name in self.buffers and self.rows_first:
                self._load(tile, name, lines, self.steps * width)
            elif name in self.buffers:
                source = flatten_to_rows(self.buffers[name], width)
                with T.serial(0, self.steps) as step:
                    self._load_rows(tile, source, step * self.rows, lines, step * width, width)
        if "initial" in self.buffers:
            self._load(tile, "initial", self.h, self.hidden)
        else:
            with T.serial(0, self.hidden) as unit:
                vector_store(self.h, broadcast(0.0), tile, unit, 0)
        if self.lengths is not None:
            with T.serial(0, LANES) as lane:
                length = self.buffers["lengths"][T.min(self._row(tile) + lane, self.rows - 1)]
                T.buffer_store(self.lengths, T.cast(length, "float32"), [tile, 0, lane])

    def _write(self, tile: int) -> None:
        """Transpose the states of a tile back into rows."""
        hidden, steps = self.hidden, self.steps
        if "last" in self.buffers:
            target = flatten_to_rows(self.buffers["last"], hidden)
            self._store_rows(tile, target, 0, self._slot(T.int32(steps)), hidden)
        if "states" not in self.buffers:
            return
        if self.lengths is not None:
            with T.serial(0, steps) as step, T.serial(0, hidden) as unit:
                runs, at = self._runs(tile, step), (step + 1) * hidden + unit
                value = T.Select(runs, vector_load(self.h, tile, at, 0), broadcast(0.0))
                vector_store(self.h, value, tile, at, 0)
        if self.parameters.y_order is SequenceOrder.ROWS_FIRST:
            target = flatten_to_rows(self.buffers["states"], steps * hidden)
            self._store_rows(tile, target, 0, hidden, steps * hidden)
        else:
            target = flatten_to_rows(self.buffers["states"], hidden)
            with T.serial(0, steps) as step:
                self._store_rows(tile, target, step * self.rows, (step + 1) * hidden, hidden)

    def _load(self, tile: int, name: str, lines: Any, width: int) -> None:
        self._load_rows(tile, flatten_to_rows(self.buffers[name], width), 0, lines, 0, width)

    def _load_rows(self, tile: int, source: Any, first: Expr, lines: Any, line: Expr, width: int) -> None:
        load_transposed(source, first, self._row(tile), self.rows, lines, (tile, line), width)

    def _store_rows(self, tile: int, target: Any, first: Expr, line: Expr, width: int) -> None:
        store_transposed(self.h, (tile, line), target, first, self._row(tile), self.rows, width)

    def _row(self, tile: int) -> Expr:
        """The first row of a tile."""
        return self.first_row + tile * LANES

"""Sums of the gates of a recurrent layer, in registers, for a block of units and some tiles of rows at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import divide_in_registers, index_in_register, vector_load, vector_store
from veltair.compiler.codegen.multiply_add import multiply_add, reduction_steps
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.kernels.recurrent.gate_weights import GateGroup, GateWeights
from veltair.compiler.kernels.recurrent.lanes import Lanes, UnitLanes
from veltair.compiler.kernels.recurrent.state_lines import StateLines


class GateSums(ABC):
    """What both kinds of sums have in common: they start from the inputs, and the products with the state are added.

    ::

        for block, line in sums.blocks():
            sums.start(GateGroup.GATES, step, block)
            sums.add_state(GateGroup.GATES, memory.h, places, first_line, block, gates=(RESET, UPDATE))
    """

    tiles: int  # of rows, whose sums are there at a time

    def __init__(self, weights: GateWeights, buffers: Mapping[str, Any], lanes: Lanes) -> None:
        self.weights, self.buffers, self.lanes = weights, buffers, lanes
        self.units, self.number_of_blocks = weights.units, len(weights.first_lines)
        self.state_row = 0  # of the packed weights: the first that a state is multiplied with

    def allocate(self, tiles: int) -> None:
        """Take the registers for sums of up to so many tiles."""
        self.tiles = tiles
        self.accumulators = T.alloc_buffer((tiles * self.units * 4,), "float32x16", scope="local")

    @abstractmethod
    def blocks(self) -> Iterator[tuple[Expr, Expr]]:
        """Blocks of units, each as its number and its first line, as often as there is code for one."""

    @abstractmethod
    def start(self, group: GateGroup, step: Expr, block: Expr) -> None:
        """Set the sums to what the inputs of a step and the biases give."""

    def add_state(
        self,
        group: GateGroup,
        state: StateLines,
        places: Sequence[Expr],
        first: Expr,
        block: Expr,
        gates: Sequence[int],
    ) -> None:
        """Add the products with the state, from line `first` on, to the sums of some gates. places: of the tiles."""

        def value(tile: int, k: Expr, taken: int) -> Expr:
            return self.lanes.state(state, places[tile], first, k, taken)

        self._multiply(group, value, self.weights.hidden, block, self.state_row, gates, state.multiplied_as)

    def sum(self, gate: int, unit: int, tile: int) -> Expr:
        """The sum of a gate of a line of the block; gates count from the first of their group."""
        return self.accumulators[(gate * self.units + unit) * self.tiles + tile]

    def first_line(self, block: Expr) -> Expr:
        """The first line of a block."""
        return T.bind(T.min(block * self.units, self.weights.lines - self.units))

    def _store(self, at: int, tile: int, value: Expr) -> None:
        T.buffer_store(self.accumulators, value, [at * self.tiles + tile])

    def _bias(self, group: GateGroup, block: Expr, at: int) -> Expr:
        return self.lanes.weight(self.buffers[f"{group}_bias"], (self._packed(block),), at)

    def _packed(self, block: Expr) -> Expr:
        """The number of a block among those of both directions."""
        return self.lanes.direction * self.number_of_blocks + block

    def _multiply(
        self,
        group: GateGroup,
        value_at: Callable[[int, Expr, int], Expr],
        depth: int,
        block: Expr,
        row: int,
        gates: Sequence[int],
        dtype: str = "float32",
    ) -> None:
        """Add `depth` values times rows of weights from `row` on to the sums of the gates.

        value_at: what a step of the reduction multiplies, by tile, step and how many values it takes. dtype: of the
            values; "uint16", bfloat16 in pairs, takes two a step.
        """
        weight, units = self.buffers[group], self.units
        for k, taken in reduction_steps(depth, dtype):
            values = [T.bind(value_at(tile, k, taken)) for tile in range(self.tiles)]
            for column, gate in enumerate(gates):
                for u in range(units):
                    factor = self.lanes.weight(weight, (self._packed(block), row + k), column * units + u)
                    factor = T.bind(factor) if self.tiles > 1 else factor
                    for tile, value in enumerate(values):
                        at = (gate * units + u) * self.tiles + tile
                        T.buffer_store(self.accumulators, multiply_add(self.accumulators[at], value, factor), [at])


class InputSums(GateSums):
    """Sums that a task of rows makes for itself, the products with the inputs among them. Made in the task.

    ::

        sums = InputSums(weights, buffers, lanes, tiles=2, hoisted=True)
        sums.hoist()
    """

    def __init__(
        self, weights: GateWeights, buffers: Mapping[str, Any], lanes: Lanes, tiles: int, hoisted: bool
    ) -> None:
        """hoisted: products with the inputs come before all steps."""
        super().__init__(weights, buffers, lanes)
        self.hoisted, self.steps, self.state_row = hoisted, lanes.steps, lanes.inputs
        self.allocate(tiles)
        lines = self.steps * self.number_of_blocks * self.units
        self.ready = {
            group: T.alloc_buffer((tiles, lines * weights.input_gates(group), LANES), "float32", scope="global")
            for group in weights.groups
            if hoisted
        }

    def blocks(self) -> Iterator[tuple[Expr, Expr]]:
        if self.number_of_blocks == 1:
            yield T.int32(0), T.int32(0)
            return
        with T.serial(0, self.number_of_blocks) as block:
            yield block, self.first_line(block)

    def hoist(self) -> None:
        """Compute the products with the inputs of all steps: a block's weights stay in the cache for all of them."""
        for group in self.weights.groups:
            for block, _ in self.blocks():
                with T.serial(0, self.steps) as step:
                    gates = self.weights.input_gates(group)
                    self._start_from_inputs(group, gates, step, block)
                    first = T.bind(self._first_ready(group, step, block))
                    for at in range(gates * self.units):
                        for tile in range(self.tiles):
                            value = self.accumulators[at * self.tiles + tile]
                            vector_store(self.ready[group], value, tile, first + at, 0)

    def start(self, group: GateGroup, step: Expr, block: Expr) -> None:
        sums = self.weights.sums(group)
        if not self.hoisted:
            self._start_from_inputs(group, sums, step, block)
            return
        made = self.weights.input_gates(group) * self.units
        first = T.bind(self._first_ready(group, step, block))
        for at in range(sums * self.units):
            for tile in range(self.tiles):
                ready = vector_load(self.ready[group], tile, first + at, 0) if at < made else None
                self._store(at, tile, ready if ready is not None else self._bias(group, block, at))

    def _first_ready(self, group: GateGroup, step: Expr, block: Expr) -> Expr:
        count = self.weights.input_gates(group) * self.units
        return (step * self.number_of_blocks + block) * count

    def _start_from_inputs(self, group: GateGroup, sums: int, step: Expr, block: Expr) -> None:
        for at in range(sums * self.units):
            value = T.bind(self._bias(group, block, at))
            for tile in range(self.tiles):
                self._store(at, tile, value)
        gates = range(self.weights.input_gates(group))
        self._multiply(group, lambda tile, k, _: self.lanes.input(tile, step, k), self.lanes.inputs, block, 0, gates)


class ProjectedSums(GateSums):
    """Sums that begin with the projected inputs. All cores share the blocks of one step: each takes some blocks, for
    all rows, so that a block's weights are read once a step and stay in one core's cache.

    ::

        sums = ProjectedSums(weights, buffers, lanes, most_tiles=4)
    """

    def __init__(self, weights: GateWeights, buffers: Mapping[str, Any], lanes: UnitLanes, most_tiles: int) -> None:
        super().__init__(weights, buffers, lanes)
        self.unit_lanes, self.most_tiles = lanes, most_tiles

    def blocks(self) -> Iterator[tuple[Expr, Expr]]:
        lanes, most = self.lanes, self.most_tiles
        with T.parallel(0, self.number_of_blocks * self.weights.directions) as task:
            block = task
            if self.weights.directions == 2:
                lanes.direction, block = divide_in_registers(task, T.int32(self.number_of_blocks))
            line = self.first_line(block)
            self.allocate(most)
            if most == 1:
                with T.serial(0, lanes.rows) as lanes.first_row:
                    yield block, line
                return
            whole, rest = divide_in_registers(lanes.rows, T.int32(most))
            with T.serial(0, whole) as tiles:
                lanes.first_row = index_in_register(tiles * most)
                yield block, line
            self.tiles = 1
            with T.serial(0, rest) as row:
                lanes.first_row = index_in_register(whole * most + row)
                yield block, line

    def start(self, group: GateGroup, step: Expr, block: Expr) -> None:
        gates, line = self.weights.gates(group), self.first_line(block)
        for place, gate in enumerate(gates):
            for u in range(self.units):
                for tile in range(self.tiles):
                    self._store(place * self.units + u, tile, self.unit_lanes.projected(tile, step, gate, line + u))
        if self.weights.reset_after:
            for u in range(self.units):
                for tile in range(self.tiles):
                    self._store(len(gates) * self.units + u, tile, self._bias(group, block, u))

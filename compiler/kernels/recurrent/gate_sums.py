"""Sums of the gates of a recurrent layer, in registers, for a block of units and some tiles of rows at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.multiply_add import multiply_add, reduction_steps
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.kernels.recurrent.gate_weights import GateGroup, GateWeights
from veltair.compiler.kernels.recurrent.lanes import Lanes
from veltair.compiler.kernels.recurrent.state_memory import Slots, StateMemory


class GateSums(ABC):
    """What all kinds of sums have in common: they start from the inputs, and the products with the state are added.

    ::

        for at, line in sums.of_blocks(GateGroup.GATES, memory, position):
            reset = sums.sum(RESET, unit, tile)
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

    def of_blocks(self, group: GateGroup, memory: StateMemory, position: Expr) -> Iterator[tuple[Slots, Expr]]:
        """The blocks of units with the sums of a group, as often as there is code for one: where the states of the
        step are, and the block's first line."""
        for block, line in self.blocks(group, position):
            at = memory.slots(position)
            self.start(group, at.step, block)
            self.add_state(group, memory, at, block)
            yield at, line

    @abstractmethod
    def blocks(self, group: GateGroup, position: Expr) -> Iterator[tuple[Expr, Expr]]:
        """Blocks of units for a group at the `position`-th step to run, each as its number and its first line."""

    @abstractmethod
    def start(self, group: GateGroup, step: Expr, block: Expr) -> None:
        """Set the sums to what the inputs of a step and the biases give."""

    def add_state(self, group: GateGroup, memory: StateMemory, at: Slots, block: Expr) -> None:
        """Add the products with the state before the step."""
        state, first = memory.multiplied(group, at)
        places, sums = [memory.place(tile) for tile in range(self.tiles)], self.weights.state_sums(group)

        def value(tile: int, k: Expr, taken: int) -> Expr:
            return self.lanes.state(state, places[tile], first, k, taken)

        self._multiply(group, value, self.weights.hidden, block, self.state_row, sums, state.multiplied_as)

    def sum(self, gate: int, unit: int, tile: int) -> Expr:
        """The sum of a gate of a line of the block; gates count from the first of their group."""
        return self.accumulators[(gate * self.units + unit) * self.tiles + tile]

    def first_line(self, block: Expr) -> Expr:
        """The first line of a block."""
        return T.bind(T.min(block * self.units, self.weights.lines - self.units))

    def store(self, at: int, tile: int, value: Expr) -> None:
        T.buffer_store(self.accumulators, value, [at * self.tiles + tile])

    def bias(self, group: GateGroup, block: Expr, at: int) -> Expr:
        return self.lanes.weight(self.buffers[f"{group}_bias"], (self.packed(block),), at)

    def packed(self, block: Expr) -> Expr:
        """The number of a block among those of both directions."""
        return self.lanes.direction * self.number_of_blocks + block

    def _multiply(
        self,
        group: GateGroup,
        value_at: Callable[[int, Expr, int], Expr],
        depth: int,
        block: Expr,
        row: int,
        sums: Sequence[int],
        dtype: str = "float32",
    ) -> None:
        """Add `depth` values times rows of weights from `row` on to some sums.

        value_at: what a step of the reduction multiplies, by tile, step and how many values it takes. dtype: of the
            values; "uint16", bfloat16 in pairs, takes two a step.
        """
        weight, units = self.buffers[group], self.units
        for k, taken in reduction_steps(depth, dtype):
            values = [T.bind(value_at(tile, k, taken)) for tile in range(self.tiles)]
            for column, gate in enumerate(sums):
                for u in range(units):
                    factor = self.lanes.weight(weight, (self.packed(block), row + k), column * units + u)
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

    def blocks(self, group: GateGroup, position: Expr) -> Iterator[tuple[Expr, Expr]]:
        if self.number_of_blocks == 1:
            yield T.int32(0), T.int32(0)
            return
        with T.serial(0, self.number_of_blocks) as block:
            yield block, self.first_line(block)

    def hoist(self) -> None:
        """Compute the products with the inputs of all steps: a block's weights stay in the cache for all of them."""
        for group in self.weights.groups:
            for block, _ in self.blocks(group, T.int32(0)):
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
                self.store(at, tile, ready if ready is not None else self.bias(group, block, at))

    def _first_ready(self, group: GateGroup, step: Expr, block: Expr) -> Expr:
        count = self.weights.input_gates(group) * self.units
        return (step * self.number_of_blocks + block) * count

    def _start_from_inputs(self, group: GateGroup, sums: int, step: Expr, block: Expr) -> None:
        for at in range(sums * self.units):
            value = T.bind(self.bias(group, block, at))
            for tile in range(self.tiles):
                self.store(at, tile, value)
        gates = range(self.weights.input_gates(group))
        self._multiply(group, lambda tile, k, _: self.lanes.input(tile, step, k), self.lanes.inputs, block, 0, gates)

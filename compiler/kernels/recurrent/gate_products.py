"""Products of the gates of a recurrent layer: sums in registers for a block of units and all tiles of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.kernels.recurrent.gate_weights import GateGroup, GateWeights
from veltair.compiler.kernels.recurrent.lanes import Lanes


class GateProducts:
    """Emits the sums of the gates; made in the task, whose memory it takes. The sums of one block are there at a time.

    ::

        products = GateProducts(weights, buffers, lanes, steps=50, tiles=2, hoisted=True)
        with products.loop_over_blocks() as (block, line):
            products.start(GateGroup.GATES, step, block)
            products.add_state(GateGroup.GATES, states, first_line, block, gates=(RESET, UPDATE))
    """

    def __init__(
        self, weights: GateWeights, buffers: Mapping[str, Any], lanes: Lanes, steps: int, tiles: int, hoisted: bool
    ) -> None:
        """hoisted: products with the inputs come before all steps."""
        self.weights, self.buffers, self.lanes, self.tiles, self.hoisted = weights, buffers, lanes, tiles, hoisted
        self.units, self.steps, self.inputs = weights.units, steps, lanes.inputs
        self.accumulators = T.alloc_buffer((tiles * self.units * 4,), "float32x16", scope="local")
        self.blocks = len(weights.first_lines)
        lines = steps * self.blocks * self.units
        self.ready = {
            group: T.alloc_buffer((tiles, lines * weights.input_gates(group), LANES), "float32", scope="global")
            for group in weights.groups
            if hoisted
        }

    @contextmanager
    def loop_over_blocks(self) -> Iterator[tuple[Expr, Expr]]:
        """Loops over the blocks of units; each is given as its number and its first line."""
        if self.blocks == 1:
            yield T.int32(0), T.int32(0)
            return
        with T.serial(0, self.blocks) as block:
            yield block, T.bind(T.min(block * self.units, self.weights.lines - self.units))

    def hoist(self) -> None:
        """Compute the products with the inputs of all steps: a block's weights stay in the cache for all of them."""
        for group in self.weights.groups:
            with self.loop_over_blocks() as (block, _), T.serial(0, self.steps) as step:
                gates = self.weights.input_gates(group)
                self._start_from_inputs(group, gates, step, block)
                first = T.bind(self._first_ready(group, step, block))
                for at in range(gates * self.units):
                    for tile in range(self.tiles):
                        value = self.accumulators[at * self.tiles + tile]
                        vector_store(self.ready[group], value, tile, first + at, 0)

    def start(self, group: GateGroup, step: Expr, block: Expr) -> None:
        """Set the sums to the biases and the products with the inputs."""
        sums = self.weights.sums(group)
        if not self.hoisted:
            self._start_from_inputs(group, sums, step, block)
            return
        made = self.weights.input_gates(group) * self.units
        first = T.bind(self._first_ready(group, step, block))
        for at in range(sums * self.units):
            for tile in range(self.tiles):
                ready = vector_load(self.ready[group], tile, first + at, 0) if at < made else None
                value = ready if ready is not None else self._bias(group, block, at)
                T.buffer_store(self.accumulators, value, [at * self.tiles + tile])

    def add_state(self, group: GateGroup, lines: Any, first: Expr, block: Expr, gates: Sequence[int]) -> None:
        """Add the products with the state, which lies in `lines` from line `first` on, to the sums of some gates."""

        def value(tile: int, k: Expr) -> Expr:
            return self.lanes.state(lines, tile, first, k)

        self._multiply(group, value, self.weights.hidden, block, self.inputs, gates)

    def sum(self, gate: int, unit: int, tile: int) -> Expr:
        """The sum of a gate of a line of the block; gates count from the first of their group."""
        return self.accumulators[(gate * self.units + unit) * self.tiles + tile]

    def _first_ready(self, group: GateGroup, step: Expr, block: Expr) -> Expr:
        count = self.weights.input_gates(group) * self.units
        return (step * self.blocks + block) * count

    def _start_from_inputs(self, group: GateGroup, sums: int, step: Expr, block: Expr) -> None:
        for at in range(sums * self.units):
            value = T.bind(self._bias(group, block, at))
            for tile in range(self.tiles):
                T.buffer_store(self.accumulators, value, [at * self.tiles + tile])
        gates = range(self.weights.input_gates(group))
        self._multiply(group, lambda tile, k: self.lanes.input(tile, step, k), self.inputs, block, 0, gates)

    def _bias(self, group: GateGroup, block: Expr, at: int) -> Expr:
        return self.lanes.weight(self.buffers[f"{group}_bias"], (self._packed(block),), at)

    def _packed(self, block: Expr) -> Expr:
        """The number of a block among those of both directions."""
        return self.lanes.direction * self.blocks + block

    def _multiply(
        self,
        group: GateGroup,
        value_at: Callable[[int, Expr], Expr],
        depth: int,
        block: Expr,
        row: int,
        gates: Sequence[int],
    ) -> None:
        """Add `depth` values times rows of weights from `row` on to the sums of the gates. value_at: by tile and k."""
        weight, units = self.buffers[group], self.units
        with T.serial(0, depth) as k:
            values = [T.bind(value_at(tile, k)) for tile in range(self.tiles)]
            for column, gate in enumerate(gates):
                for u in range(units):
                    factor = self.lanes.weight(weight, (self._packed(block), row + k), column * units + u)
                    factor = T.bind(factor) if self.tiles > 1 else factor
                    for tile, value in enumerate(values):
                        at = (gate * units + u) * self.tiles + tile
                        T.buffer_store(self.accumulators, self.accumulators[at] + value * factor, [at])

"""Sums of the gates of a recurrent layer whose inputs come projected. All cores share the blocks of one step.

Each takes some blocks, for all rows, so that a block's weights are read once a step and stay in one core's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.amx import load_tile, multiply_bf16_tiles, release_tiles, store_tile, zero_tile
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import allocate_scratch, divide_in_registers, index_in_register, vector_load
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.kernels.matmul.amx_tiles import STEP, TILE, configure_tiles
from veltair.compiler.kernels.recurrent.alternating_tasks import AlternatingTasks
from veltair.compiler.kernels.recurrent.gate_sums import GateSums
from veltair.compiler.kernels.recurrent.gate_weights import GateGroup, GateWeights
from veltair.compiler.kernels.recurrent.lanes import UnitLanes
from veltair.compiler.kernels.recurrent.state_memory import Slots, StateMemory

MOST_SUMS = 6  # tiles of sums: two of eight hold the operands
LEFT, RIGHT = 6, 7
FEWEST_ROWS = 4  # that pay for a tile


class ProjectedSums(GateSums):
    """Sums in registers, of up to `most_tiles` rows at a time.

    ::

        sums = ProjectedSums(weights, buffers, lanes, most_tiles=4)
    """

    lanes: UnitLanes

    def __init__(self, weights: GateWeights, buffers: Mapping[str, Any], lanes: UnitLanes, most_tiles: int) -> None:
        super().__init__(weights, buffers, lanes)
        self.most_tiles = most_tiles
        blocks = self.number_of_blocks * weights.directions
        self.tasks = {group: AlternatingTasks(blocks) for group in weights.groups}

    def blocks(self, group: GateGroup, position: Expr) -> Iterator[tuple[Expr, Expr]]:
        for block in self.shared_blocks(group, position):
            self.allocate(self.most_tiles)
            line, rows, done = self.first_line(block), self.lanes.rows, T.int32(0)
            for size in self.tile_sizes():
                # What is left is for smaller tiles, unless it is more than half of one. Then the last tile moves up and
                # computes some rows twice: their states before the step are still there.
                self.tiles = size
                wanted = T.truncdiv(rows - done + (size - 1) // 2, size)
                number = index_in_register(T.Select(rows < size, 0, wanted))
                with T.serial(0, number) as nth:
                    self.lanes.first_row = index_in_register(T.min(done + nth * size, rows - size))
                    yield block, line
                done = index_in_register(T.min(done + number * size, rows))

    def tile_sizes(self) -> list[int]:
        """Rows of a tile, the most first, that there is code for."""
        return list(dict.fromkeys((self.most_tiles, -(-self.most_tiles // 2), 1)))

    def shared_blocks(self, group: GateGroup, position: Expr) -> Iterator[Expr]:
        """The blocks of both directions, one parallel task each."""
        for task in self.tasks[group].run(position):
            block = task
            if self.weights.directions == 2:
                self.lanes.direction, block = divide_in_registers(task, T.int32(self.number_of_blocks))
            yield block

    def start(self, group: GateGroup, step: Expr, block: Expr) -> None:
        gates, line = self.weights.gates(group), self.first_line(block)
        for place, gate in enumerate(gates):
            for u in range(self.units):
                for tile in range(self.tiles):
                    self.store(place * self.units + u, tile, self.lanes.projected(tile, step, gate, line + u))
        if self.weights.reset_after:
            for u in range(self.units):
                for tile in range(self.tiles):
                    self.store(len(gates) * self.units + u, tile, self.bias(group, block, u))


class TileSums(ProjectedSums):
    """Sums whose products with the states of 16 rows are made in AMX tiles; rows that are left are taken one by one.

    ::

        sums = TileSums(weights, buffers, lanes)
    """

    def __init__(self, weights: GateWeights, buffers: Mapping[str, Any], lanes: UnitLanes) -> None:
        super().__init__(weights, buffers, lanes, most_tiles=1)

    def of_blocks(self, group: GateGroup, memory: StateMemory, position: Expr) -> Iterator[tuple[Slots, Expr]]:
        rows, lanes = self.lanes.rows, self.lanes
        for block in self.shared_blocks(group, position):
            self.allocate(1)
            at, line = memory.slots(position), self.first_line(block)
            products = allocate_scratch((TILE, self._columns(group) * LANES), "float32")
            whole = index_in_register(T.truncdiv(rows + TILE - FEWEST_ROWS, TILE))
            with when(whole > 0):
                configure_tiles(allocate_scratch((64,), "uint8"), T.int32(TILE))
                with T.serial(0, whole) as tile:
                    first = index_in_register(tile * TILE)
                    lanes.first_row = first
                    self._multiply_tile(group, memory, at, block, products)
                    with T.serial(0, T.min(rows - first, TILE)) as row:
                        lanes.first_row = index_in_register(first + row)
                        self.start(group, at.step, block)
                        self._add_products(group, products, row)
                        yield at, line
                release_tiles()
            with T.serial(0, T.max(rows - whole * TILE, 0)) as row:
                lanes.first_row = index_in_register(whole * TILE + row)
                self.start(group, at.step, block)
                self.add_state(group, memory, at, block)
                yield at, line

    def _columns(self, group: GateGroup) -> int:
        """Tiles of columns of a group's weights."""
        return len(self.weights.gates(group)) * self.units

    def _multiply_tile(self, group: GateGroup, memory: StateMemory, at: Slots, block: Expr, products: Any) -> None:
        """Store the products of 16 rows, from the first row of the lanes on, with all columns of a block."""
        columns, weight = self._columns(group), self.buffers[group]
        state, first = memory.multiplied(group, at)
        bits, place = state.bits, memory.place(0)
        for register in range(columns):
            zero_tile(register)
        with T.serial(0, -(-self.weights.hidden // STEP)) as step:
            left = T.address_of(bits[place, first * LANES + step * STEP])
            load_tile(LEFT, left, 2 * int(bits.shape[1]))
            for register in range(columns):
                right = T.address_of(weight[self.packed(block), step * TILE, register * LANES])
                load_tile(RIGHT, right, 4 * columns * LANES)
                multiply_bf16_tiles(register, LEFT, RIGHT)
        for register in range(columns):
            store_tile(register, T.address_of(products[0, register * LANES]), 4 * columns * LANES)

    def _add_products(self, group: GateGroup, products: Any, row: Expr) -> None:
        for column, place in enumerate(self.weights.state_sums(group)):
            for u in range(self.units):
                made = vector_load(products, row, (column * self.units + u) * LANES)
                self.store(place * self.units + u, 0, self.sum(place, u, 0) + made)

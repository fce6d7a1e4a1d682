"""The code of a parallel task of a recurrent layer: some tiles of rows through all steps in one direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import LayerSpec, Point
from veltair.compiler.graph.parameters.sequence import RecurrentParameters
from veltair.compiler.kernels.recurrent.cell_step import CellStep
from veltair.compiler.kernels.recurrent.gate_sums import InputSums
from veltair.compiler.kernels.recurrent.gate_weights import GateWeights
from veltair.compiler.kernels.recurrent.lanes import RowLanes, UnitLanes
from veltair.compiler.kernels.recurrent.state_memory import TaskStates


class RecurrentTask:
    """Emits the code of a layer. Of two directions, tasks with even numbers go forward and the others backward.

    ::

        RecurrentTask(spec, point, weights, buffers).emit()  # buffers: by the names of inputs, weights and outputs
    """

    def __init__(self, spec: LayerSpec, point: Point, weights: GateWeights, buffers: Mapping[str, Any]) -> None:
        self.weights, self.buffers = weights, buffers
        self.count = spec.parameters_as(RecurrentParameters).direction.extent
        self.tiles, self.hoisted = int(point["tiles"]), bool(point["hoisted"])
        self.lanes = UnitLanes(spec, buffers) if weights.width > 1 else RowLanes(spec, buffers)

    def emit(self) -> None:
        lanes, count = self.lanes, self.count
        rows = self.tiles * lanes.tile_rows
        with T.parallel(0, T.ceildiv(lanes.rows, rows) * count) as task:
            lanes.first_row = T.bind(task // count * rows)
            if count == 2:
                lanes.direction = T.bind(task % 2)
            lanes.read(self.tiles)
            memory = TaskStates(lanes, self.weights, self.tiles)
            sums = InputSums(self.weights, self.buffers, lanes, self.tiles, self.hoisted)
            for tile in range(self.tiles):
                memory.read(tile)
            if self.hoisted:
                sums.hoist()
            step = CellStep(lanes, sums, memory)
            with T.serial(0, lanes.steps) as position:
                step.emit(position)
            for tile in range(self.tiles):
                memory.write(tile)

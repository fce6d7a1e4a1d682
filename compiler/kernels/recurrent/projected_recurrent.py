"""Recurrent cells with many units, whose inputs a matrix product has projected: one step of all rows at a time.

What a step of such a cell takes is the time to read its weights (4 MB of an LSTM of 512 units). So all cores share the
units of a step, and each keeps its part of the weights in its own L2 from one step to the next. The tasks of a step
begin when those of the step before have ended, which takes the runtime's threads about a microsecond.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.multiply_add import reduction_body
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.products import WeightStorage
from veltair.compiler.graph.parameters.sequence import ProjectedRecurrentParameters
from veltair.compiler.kernels.matmul.matrix_unit import MatrixUnit
from veltair.compiler.kernels.recurrent.cell_step import CellStep
from veltair.compiler.kernels.recurrent.gate_weights import GateWeights
from veltair.compiler.kernels.recurrent.lanes import SequenceExtents, UnitLanes
from veltair.compiler.kernels.recurrent.projected_sums import FEWEST_ROWS, MOST_SUMS, ProjectedSums, TileSums
from veltair.compiler.kernels.recurrent.recurrent import even_blocks, sums_of_unit
from veltair.compiler.kernels.recurrent.state_memory import SharedStates


class ProjectedRecurrent:
    """The cells of `Recurrent` with what the inputs and the biases give their gates as first input.

    inputs: sums (rows, steps, D G H'), x W + b of every direction and gate with H' the units padded to a multiple of
    16, then those of `Recurrent` behind x; weights: recurrent (H, D G H), and of a GRU whose reset comes after the
    product candidate_bias (D H); outputs: those of `Recurrent`. Parameters: `ProjectedRecurrentParameters`.

    ::

        avx2 = frozenset({"avx2"})
        point = ProjectedRecurrent().points(spec, avx2)[0]  # of an LSTM of 512: {"tiles": 1, "units": 1}
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        extents = SequenceExtents.of_layer(spec)
        registers, lines = 24 if "avx512" in features else 6, -(-extents.hidden // LANES)
        most_rows, sums = spec.most(extents.rows), sums_of_unit(spec)
        points: list[Point] = []
        parameters = spec.parameters_as(ProjectedRecurrentParameters)
        columns = min(sums, parameters.cell.gates)  # of the weights of a unit, at a time
        if parameters.storage is WeightStorage.BF16 and "amx_bf16" in features and most_rows >= FEWEST_ROWS:
            points.append({"unit": MatrixUnit.AMX.value, "units": even_blocks(lines, MOST_SUMS // columns)})
        for tiles in (6, 4, 2, 1):
            most = registers // sums // tiles
            if most and tiles <= most_rows:
                units = even_blocks(lines, most)
                points += [{"tiles": tiles, "units": least} for least in dict.fromkeys((units, even_blocks(units, 2)))]
        return points

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        parameters, extents = spec.parameters_as(ProjectedRecurrentParameters), SequenceExtents.of_layer(spec)
        narrow = parameters.storage is WeightStorage.BF16
        weights = GateWeights(spec, int(point["units"]), LANES)
        most_rows = spec.most(extents.rows)

        def emit(*buffers: Any) -> None:
            names = (*parameters.reads, *weights.arrays, *parameters.writes)
            named = dict(zip(names, buffers, strict=True))
            lanes = UnitLanes(spec, named)
            memory = SharedStates(lanes, weights, most_rows, narrow)
            if "unit" in point:
                sums: ProjectedSums = TileSums(weights, named, lanes)
            else:
                sums = ProjectedSums(weights, named, lanes, int(point["tiles"]))
            step = CellStep(lanes, sums, memory)
            memory.read_all()
            with T.serial(0, lanes.steps) as position:
                step.emit(position)
            memory.write_all()

        arrays = tuple(weights.arrays.values())
        body = reduction_body("uint16" if narrow else "float32", emit)
        function = build_prim_func([*spec.inputs, *arrays, *spec.outputs], body)
        tasks = len(weights.first_lines) * weights.directions
        block_size = sum(array.nbytes for array in arrays) // tasks + most_rows * extents.hidden * 4
        return Kernel(function, arrays, block_size, tasks * LANES)

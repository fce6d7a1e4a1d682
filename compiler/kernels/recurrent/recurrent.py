"""Recurrent cells over sequences: GRU, AUGRU, LSTM and RNN, all steps of a tile of rows in one task.

Nothing passes through memory between steps but the tile's own states, in L1 where they fit. Lanes are rows of the
batch, or units of one row ([`lanes`](lanes.py)). Two directions are one layer, whose tasks they share between them.

The products with the inputs depend on no state. They are computed for all steps before the first one ("hoisted", AtRec
III-B1), or within each step, where they fill the time that the chain of states spends waiting. Neither concatenates or
splits anything.
"""

from __future__ import annotations

from typing import Any

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.sequence import Cell, RecurrentParameters, ResetPosition
from veltair.compiler.kernels.recurrent.gate_weights import GateWeights
from veltair.compiler.kernels.recurrent.lanes import SequenceExtents
from veltair.compiler.kernels.recurrent.recurrent_task import RecurrentTask

FEW_ROWS = 64  # up to here the units are the lanes by default, where they fill a vector


class Recurrent:
    """inputs: x (rows, steps, I)[, scores (rows, steps)][, initial (D, rows, H)][, initial_cell (D, rows, H)][, lengths
    (rows) int32]; weights, of D directions and G gates: input (I, D G H) and recurrent (H, D G H), bias (D G H), and of
    a GRU candidate_bias (D H); outputs: states (rows, steps, D, H), last (D, rows, H) and last_cell (D, rows, H), or
    some of them. A dimension D = 1 may be left out.

        GRU:  r, u = f(x W + h R + b);  u = (1 - score) u;  h = u h + (1 - u) c
              c = g(x W + (r h) R + b), or g(x W + r (h R + candidate_bias) + b) where the reset comes after the product
        LSTM: i, o, f = f(x W + h R + b);  c = f c + i g(x W + h R + b);  h = o k(c)
        RNN:  h = g(x W + h R + b)

    f, g and k are `activations`. Behind the length of a row, its state stays as it is and its `states` are zeros;
    a row of length 0 has zeros alone.
    Parameters: `RecurrentParameters`.

    ::

        avx2 = frozenset({"avx2"})
        point = Recurrent().points(spec, avx2)[0]  # of 36 states: {"tiles": 1, "units": 3, "hoisted": 0}
        kernel = Recurrent().build(spec, point, avx2)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        extents = SequenceExtents.of_layer(spec)
        rows, units = self._row_points(spec, extents, features), self._unit_points(spec, extents, features)
        few = extents.hidden >= LANES and spec.most(extents.rows) <= FEW_ROWS
        return [*units, *rows] if few else [*rows, *units]

    def _row_points(self, spec: LayerSpec, extents: SequenceExtents, features: frozenset[str]) -> list[Point]:
        points: list[Point] = []
        for most, tiles in self._row_blocks(spec, features):
            units = even_blocks(extents.hidden, most)
            made: list[Point] = [{"tiles": tiles, "units": units, "hoisted": hoisted} for hoisted in (0, 1)]
            points += [point for point in made if point not in points]
        return points

    def _row_blocks(self, spec: LayerSpec, features: frozenset[str]) -> list[tuple[int, int]]:
        """Units of a block at most, and tiles. A sum is a vector of 16 rows: of AVX2 two of 16 registers.

        With AVX2 the sums of the loop over the states are in registers, and those of candidates that wait for the reset
        are not. Some sums more are spilled, which pays where they save a block that would be half empty.
        """
        sums, recurrent = sums_of_unit(spec), spec.parameters_as(RecurrentParameters)
        if "avx512" in features:
            return [(24 // sums, 1), (24 // sums // 2, 2)]
        looped = 3 if recurrent.cell is Cell.GRU and recurrent.reset is ResetPosition.AFTER_PRODUCT else sums
        return [(6 // looped, 1), (8 // looped, 1)]

    def _unit_points(self, spec: LayerSpec, extents: SequenceExtents, features: frozenset[str]) -> list[Point]:
        registers = 24 if "avx512" in features else 6
        points: list[Point] = []
        for tiles in (1, 4) if "avx512" in features else (1, 2):
            most = registers // sums_of_unit(spec) // tiles
            if extents.hidden < LANES // 2 or (tiles > 1 and (not most or spec.most(extents.rows) == 1)):
                continue
            units = even_blocks(-(-extents.hidden // LANES), most)
            points += [{"lanes": "units", "tiles": tiles, "units": units, "hoisted": hoisted} for hoisted in (1, 0)]
        return points

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        parameters, by_units = spec.parameters_as(RecurrentParameters), point.get("lanes") == "units"
        weights = GateWeights(spec, int(point["units"]), LANES if by_units else 1)

        def body(*buffers: Any) -> None:
            names = (*parameters.reads, *weights.arrays, *parameters.writes)
            RecurrentTask(spec, point, weights, dict(zip(names, buffers, strict=True))).emit()

        arrays = tuple(weights.arrays.values())
        function = build_prim_func([*spec.inputs, *arrays, *spec.outputs], body)
        rows, extents = int(point["tiles"]) * (1 if by_units else LANES), SequenceExtents.of_layer(spec)
        sequence_bytes = rows * extents.steps * 4 * (extents.inputs + extents.hidden)
        block_size = sequence_bytes + sum(array.nbytes for array in arrays) // weights.directions
        tasks = -(-spec.most(extents.rows) // rows) * weights.directions
        return Kernel(function, arrays, block_size, tasks * LANES)


def sums_of_unit(spec: LayerSpec) -> int:
    """Sums of a unit that are in registers at a time."""
    parameters = spec.parameters_as(RecurrentParameters)
    if parameters.cell is Cell.GRU:
        return 4 if parameters.reset is ResetPosition.AFTER_PRODUCT else 2
    return parameters.cell.gates


def even_blocks(lines: int, most: int) -> int:
    """Lines of a block, at most so many, so that all blocks are about as long."""
    return -(-lines // -(-lines // max(most, 1)))

"""Gated recurrent units over short sequences, all steps of a tile of rows in one task.

Lanes are rows of the batch: the state of a unit is one vector, and a product with a weight is one multiply-add of 16
rows, however few units there are. Sequences are transposed into that form 16 by 16 in registers when they are read, and
back when they are written, so that nothing passes through memory between steps but the tile's own states, in L1.

The products with the inputs depend on no state. They are computed for all steps before the first one ("hoisted", AtRec
III-B1), or within each step, where they fill the time that the chain of states spends waiting. Neither concatenates or
splits anything.
"""

from __future__ import annotations

from typing import Any

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.sequence import RecurrentParameters, ResetPosition
from veltair.compiler.kernels.recurrent.gate_weights import GateWeights
from veltair.compiler.kernels.recurrent.recurrent_task import RecurrentTask, SequenceExtents


class Recurrent:
    """inputs: x (rows, steps, I)[, scores (rows, steps)][, initial (rows, H)][, lengths (rows) int32]; weights: input
    (I, 3 H) and recurrent (H, 3 H) for reset, update and candidate, bias (3 H), candidate_bias (H); outputs: states
    (rows, steps, H) and last (rows, H), or one of them.

        r, u = sigmoid(x W + h R + b);  u = (1 - score) u;  h = u h + (1 - u) c
        c = tanh(x W + (r h) R + b), or tanh(x W + r (h R + candidate_bias) + b) where the reset comes after the product

    Behind the length of a row, its state stays as it is and its `states` are zeros. Parameters: `RecurrentParameters`.

    ::

        avx2 = frozenset({"avx2"})
        point = Recurrent().points(spec, avx2)[0]  # of 36 states: {"tiles": 1, "units": 6, "hoisted": 0}
        kernel = Recurrent().build(spec, point, avx2)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        hidden = spec.weights["recurrent"].shape[0]
        registers = 24 if "avx512" in features else 12
        gates = 4 if spec.parameters_as(RecurrentParameters).reset is ResetPosition.AFTER_PRODUCT else 2
        points: list[Point] = []
        for tiles in (1, 2) if "avx512" in features else (1,):
            most = max(registers // gates // tiles, 1)
            blocks = -(-hidden // most)
            for hoisted in (0, 1):
                points.append({"tiles": tiles, "units": -(-hidden // blocks), "hoisted": hoisted})
        return points

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        parameters, weights = spec.parameters_as(RecurrentParameters), GateWeights(spec, int(point["units"]))

        def body(*buffers: Any) -> None:
            names = (*parameters.reads, *weights.arrays, *parameters.writes)
            RecurrentTask(spec, point, weights, dict(zip(names, buffers, strict=True))).emit()

        arrays = tuple(weights.arrays.values())
        function = build_prim_func([*spec.inputs, *arrays, *spec.outputs], body)
        rows, extents = int(point["tiles"]) * LANES, SequenceExtents.of_layer(spec)
        sequence_bytes = rows * extents.steps * 4 * (extents.inputs + extents.hidden)
        block_size = sequence_bytes + sum(array.nbytes for array in arrays)
        return Kernel(function, arrays, block_size, -(-spec.most(extents.rows) // rows) * LANES)

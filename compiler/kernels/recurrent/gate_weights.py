"""Weights of a gated recurrent unit in the order in which the loops read them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.sequence import RecurrentParameters, ResetPosition

RESET, UPDATE, CANDIDATE, CANDIDATE_STATE = range(4)  # gates; the last is the candidate's product with the state alone


class GateGroup(StrEnum):
    """Gates whose sums are computed together; the values name the packed weights."""

    GATES = "gates"  # reset and update, and all others where the reset comes after the product
    CANDIDATE = "candidate"


class GateWeights:
    """Packed weights by block of `units` units; a last block that would reach past the units begins earlier.

    arrays: gates (blocks, I + H, 2 units) and candidate (blocks, I + H, units), or, where the reset comes after the
    product, gates (blocks, I + H, 3 units) alone. Biases likewise, (blocks, …), with the candidate's second one behind.

    ::

        weights = GateWeights(spec, units=8)
        weights.arrays["gates"].shape
    """

    def __init__(self, spec: LayerSpec, units: int) -> None:
        self.units = units
        self.hidden = hidden = spec.weights["recurrent"].shape[0]
        self.first_units = [min(first, hidden - units) for first in range(0, hidden, units)]  # of each block
        self.reset_after = spec.parameters_as(RecurrentParameters).reset is ResetPosition.AFTER_PRODUCT
        matrix = np.concatenate([spec.weights["input"], spec.weights["recurrent"]]).astype(np.float32)
        bias = spec.weights["bias"].astype(np.float32)
        if self.reset_after:
            biases = np.concatenate([bias, spec.weights["candidate_bias"].astype(np.float32)])
            self.arrays = {
                "gates": self._pack(matrix, (RESET, UPDATE, CANDIDATE)),
                "gates_bias": self._pack(biases, (RESET, UPDATE, CANDIDATE, CANDIDATE_STATE)),
            }
        else:
            self.arrays = {
                "gates": self._pack(matrix, (RESET, UPDATE)),
                "gates_bias": self._pack(bias, (RESET, UPDATE)),
                "candidate": self._pack(matrix, (CANDIDATE,)),
                "candidate_bias": self._pack(bias, (CANDIDATE,)),
            }

    @property
    def groups(self) -> tuple[GateGroup, ...]:
        return (GateGroup.GATES,) if self.reset_after else (GateGroup.GATES, GateGroup.CANDIDATE)

    def input_gates(self, group: GateGroup) -> int:
        """Gates of a group that have products with the inputs."""
        if group is GateGroup.CANDIDATE:
            return 1
        return 3 if self.reset_after else 2

    def sums(self, group: GateGroup) -> int:
        """Sums of each unit: one a gate, and one more for the candidate's product with the state where the reset comes
        after it."""
        return self.input_gates(group) + (1 if self.reset_after else 0)

    def _pack(self, array: NDArray[np.float32], gates: Sequence[int]) -> NDArray[np.float32]:
        starts = [[gate * self.hidden + first for gate in gates] for first in self.first_units]
        columns = [[start + unit for start in block for unit in range(self.units)] for block in starts]
        return np.ascontiguousarray(np.moveaxis(array[..., columns], -2, 0), np.float32)

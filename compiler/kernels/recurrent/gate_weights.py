"""Weights of a recurrent layer in the order in which the loops read them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.codegen.weight_packing import pack_bf16_pairs, pad_axis
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.products import WeightStorage
from veltair.compiler.graph.parameters.sequence import (
    Cell,
    ProjectedRecurrentParameters,
    RecurrentParameters,
    ResetPosition,
)
from veltair.compiler.kernels.matmul.amx_tiles import STEP

RESET, UPDATE, CANDIDATE, CANDIDATE_STATE = range(4)  # of a GRU; the last is the candidate's product with the state
INPUT, OUTPUT, FORGET, CELL = range(4)  # of an LSTM


class GateGroup(StrEnum):
    """Gates whose sums are computed together; the values name the packed weights."""

    GATES = "gates"  # all, except for the candidate of a GRU where the reset comes before the product
    CANDIDATE = "candidate"


class GateWeights:
    """Packed weights by block of `units` lines; a last block that would reach past the lines begins earlier.

    A line is a unit, or 16 of them where units are the vectors' lanes, with zeros behind the last unit. Of two
    directions, the backward one's blocks follow those of the forward one.

    arrays: for each group its weights (blocks, I + H, gates x units x width of a line) and its biases (blocks, sums x
    units x width). Where a GRU's reset comes after the product, the candidate's second bias stands behind the others.
    Where the inputs come projected, the weights are the H rows of the state alone, in pairs of bfloat16 if the layer
    stores them so (zeros fill the last step of AMX tiles), and the only bias is that second one of a candidate.

    ::

        weights = GateWeights(spec, units=8, width=1)
        weights.arrays["gates"].shape
    """

    def __init__(self, spec: LayerSpec, units: int, width: int) -> None:
        """units: lines of a block; width: units of a line, 1 or 16."""
        parameters = spec.parameters_as(RecurrentParameters)
        self.units, self.width, self.cell = units, width, parameters.cell
        self.hidden, self.directions = spec.weights["recurrent"].shape[0], parameters.direction.extent
        self.lines = -(-self.hidden // width)  # of a state
        self.first_lines = [min(first, self.lines - units) for first in range(0, self.lines, units)]  # of each block
        self.reset_after = self.cell is Cell.GRU and parameters.reset is ResetPosition.AFTER_PRODUCT
        self.two_groups = self.cell is Cell.GRU and not self.reset_after
        narrow = isinstance(parameters, ProjectedRecurrentParameters) and parameters.storage is WeightStorage.BF16
        matrices = [spec.weights[name] for name in ("input", "recurrent") if name in spec.weights]
        matrix = self._split(np.concatenate(matrices))
        names = [name for name in ("bias", "candidate_bias") if name in spec.weights]
        biases = {name: self._split(spec.weights[name][None]) for name in names}
        self.arrays: dict[str, NDArray[Any]] = {}
        for group in self.groups:
            gates = self.gates(group)
            packed = self._pack(matrix, gates)
            self.arrays[group] = pack_bf16_pairs(pad_axis(packed, 1, STEP), 1) if narrow else packed
            found = [biases["bias"][:, :, gates]] if "bias" in biases else []
            if self.reset_after:
                found.append(biases["candidate_bias"])
            if found:
                bias = np.concatenate(found, axis=2)
                self.arrays[f"{group}_bias"] = self._pack(bias, range(bias.shape[2]))[:, 0]

    @property
    def groups(self) -> tuple[GateGroup, ...]:
        return (GateGroup.GATES, GateGroup.CANDIDATE) if self.two_groups else (GateGroup.GATES,)

    def input_gates(self, group: GateGroup) -> int:
        """Gates of a group that have products with the inputs."""
        return len(self.gates(group))

    def sums(self, group: GateGroup) -> int:
        """Sums of each unit: one a gate, and one more for the candidate's product with the state where the reset comes
        after it."""
        return self.input_gates(group) + (1 if self.reset_after else 0)

    def gates(self, group: GateGroup) -> list[int]:
        """The gates of a group by their places in the layer's weights."""
        if self.two_groups:
            return [RESET, UPDATE] if group is GateGroup.GATES else [CANDIDATE]
        return list(range(self.cell.gates))

    def state_sums(self, group: GateGroup) -> list[int]:
        """The sums of a group that have products with the state, in the order of their weights."""
        return [RESET, UPDATE, CANDIDATE_STATE] if self.reset_after else list(range(len(self.gates(group))))

    def _split(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Columns by direction, gate and line: (depth, directions, gates, lines, width)."""
        columns = array.astype(np.float32).reshape(len(array), self.directions, -1, self.hidden)
        return pad_axis(columns, 3, self.width).reshape(*columns.shape[:3], self.lines, self.width)

    def _pack(self, split: NDArray[np.float32], gates: Sequence[int]) -> NDArray[np.float32]:
        """(directions x blocks, depth, gates x units x width)."""
        blocks = [
            split[:, direction][:, gates, first : first + self.units].reshape(len(split), -1)
            for direction in range(self.directions)
            for first in self.first_lines
        ]
        return np.ascontiguousarray(np.stack(blocks))

"""What a stitched layer computes: `StitchedParameters`."""

from __future__ import annotations

from dataclasses import dataclass, field

from veltair.compiler.graph.parameters import OUTSIDE_WORKLOAD, LayerParameters
from veltair.compiler.stitch.iteration_space import IterationSpace


@dataclass(frozen=True, slots=True)
class StitchedParameters(LayerParameters):
    """The programs that one kernel packs, each in its own iteration space.

    >>> StitchedParameters("add+exp", "00ff", domains=(), names=()).terms()
    {'kinds': 'add+exp', 'structure': '00ff'}
    """

    kinds: str  # the operators for people: "add+exp|mul" are two packed programs
    structure: str  # digest of the programs and of which operands they share; layers that agree in it share code
    domains: tuple[IterationSpace, ...] = field(metadata=OUTSIDE_WORKLOAD)
    names: tuple[str, ...] = field(metadata=OUTSIDE_WORKLOAD)  # values of the operands: inputs, weights, outputs

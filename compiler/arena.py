"""The arena: one block of memory for all activations of a model, where tensors whose lifetimes do not overlap share it.

The arena is cut into regions. A tensor with a halo lies among tensors whose planes (height and width with halo, block)
are the same, at a whole number of planes from the start of the region: kernels write only inside the halo, so the zeros
that the arena began with stay zeros, however many channels lay there before. Tensors without a halo share one region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Literal

import numpy as np

from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.graph.layer_spec import Activation, Halo
from veltair.errors import VeltairError
from veltair.profiles.artifact.manifest import ALIGNMENT, SLACK_BYTES


@dataclass(frozen=True, slots=True)
class Allocation:
    """The memory of one tensor.

    >>> Allocation("arena", offset=4096).kind
    'arena'
    """

    kind: Literal["input", "output", "arena"]
    offset: int  # bytes into the arena, or the position among the model's input tensors or outputs


@dataclass(frozen=True, slots=True)
class Arena:
    """The allocations of a model's tensors. `plan_arena` makes it.

    >>> Arena({"y": Allocation("arena", 64)}, bytes=4096).allocations["y"].offset
    64
    """

    allocations: Mapping[str, Allocation]  # by activation name, views included
    bytes: int


@dataclass(slots=True)
class _Lifetime:
    """A tensor that owns memory, and its first and last layer, both inclusive."""

    name: str
    tensor: Activation
    first: int
    last: int

    @property
    def region(self) -> tuple[object, ...]:
        """The key of the region: tensors with equal keys may share memory."""
        tensor = self.tensor
        return (tensor.physical[2:], tensor.halo, tensor.dtype) if tensor.halo != Halo() else ()

    def bytes(self, batch: int) -> int:
        return _bytes(self.tensor.at(batch), self.tensor.dtype)

    def unit(self, batch: int) -> int:
        """The bytes of which the tensor's offset in its region is a multiple."""
        tensor = self.tensor
        return lcm(ALIGNMENT, _bytes(tensor.at(batch)[2:], tensor.dtype)) if self.region else ALIGNMENT


def plan_arena(graph: LayerGraph) -> Arena:
    """Allocate every tensor: in each region first fit by size, largest first, at the sizes of the greatest batch."""
    homes: dict[str, Allocation] = {port.name: Allocation("input", i) for i, port in enumerate(graph.input_tensors)}
    for i, port in enumerate(graph.outputs):
        homes[graph.views.get(port.name, port.name)] = Allocation("output", i)
    lives: dict[str, _Lifetime] = {}
    for index, layer in enumerate(graph.layers):
        for tensor in (*layer.inputs, *layer.outputs):
            base, _ = graph.owner(tensor.name)
            if base not in homes:
                lives.setdefault(base, _Lifetime(base, graph.activations[base], index, index)).last = index
    regions: dict[tuple[object, ...], list[_Lifetime]] = {}
    for life in lives.values():
        regions.setdefault(life.region, []).append(life)
    top = 0
    for members in regions.values():
        offsets, size = _first_fit(members, graph.max_batch)
        homes |= {name: Allocation("arena", top + offset) for name, offset in offsets.items()}
        top += size
    allocations = dict(homes)
    for name in graph.activations:
        base, offset = graph.owner(name)
        if base in homes and name not in homes:
            if offset and homes[base].kind != "arena":  # `complete_outputs` copies such an output
                raise VeltairError(f"tensor {name!r} lies inside {homes[base].kind} {base!r}, which is a whole only")
            allocations[name] = Allocation(homes[base].kind, homes[base].offset + offset)
    return Arena(allocations, top + SLACK_BYTES)


def _first_fit(lives: Sequence[_Lifetime], batch: int) -> tuple[dict[str, int], int]:
    """Offsets by name, such that no two tensors overlap in space and lifetime, and the bytes of the region."""
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, _Lifetime]] = []  # (offset, end, life)
    for life in sorted(lives, key=lambda life: -life.bytes(batch)):
        size, unit = life.bytes(batch), life.unit(batch)
        clashes = sorted((o, e) for o, e, other in placed if other.first <= life.last and life.first <= other.last)
        offset = 0
        for start, end in clashes:
            if offset + size <= start:
                break
            offset = max(offset, -(-end // unit) * unit)
        placed.append((offset, offset + size, life))
        offsets[life.name] = offset
    end = max((end for _, end, _ in placed), default=0)
    return offsets, -(-end // ALIGNMENT) * ALIGNMENT


def _bytes(shape: Sequence[int], dtype: str) -> int:
    return prod(shape) * np.dtype(dtype).itemsize

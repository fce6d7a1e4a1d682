"""Where each activation of a model lives: one arena, places shared by tensors whose lives do not overlap.

The arena is cut into regions. A tensor with a halo lives among tensors whose planes (height and width with halo, block)
are the same, at a whole number of planes from the region's start: kernels write inside the halo alone, so the zeros
that the arena began with stay zeros, however many channels lived there before. Tensors without share one region.
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
class Place:
    kind: Literal["input", "output", "arena"]
    offset: int  # bytes into the arena, or the position among the model's input tensors or outputs


@dataclass(frozen=True, slots=True)
class Arena:
    places: Mapping[str, Place]  # by activation name, views included
    bytes: int


@dataclass(slots=True)
class _Life:
    """A tensor that owns memory, and the layers that it lives through, both inclusive."""

    name: str
    tensor: Activation
    first: int
    last: int

    @property
    def region(self) -> tuple[object, ...]:
        """What tensors that may share memory have in common."""
        tensor = self.tensor
        return (tensor.physical[2:], tensor.halo, tensor.dtype) if tensor.halo != Halo() else ()

    def bytes(self, batch: int) -> int:
        return _bytes(self.tensor.at(batch), self.tensor.dtype)

    def unit(self, batch: int) -> int:
        """Bytes of which its offset in its region is a multiple."""
        tensor = self.tensor
        return lcm(ALIGNMENT, _bytes(tensor.at(batch)[2:], tensor.dtype)) if self.region else ALIGNMENT


def plan(graph: LayerGraph) -> Arena:
    """In each region first fit by size, largest first; sizes are those of the greatest batch."""
    homes: dict[str, Place] = {port.name: Place("input", i) for i, port in enumerate(graph.input_tensors)}
    for i, port in enumerate(graph.outputs):
        homes[graph.views.get(port.name, port.name)] = Place("output", i)
    lives: dict[str, _Life] = {}
    for index, layer in enumerate(graph.layers):
        for tensor in (*layer.inputs, *layer.outputs):
            base, _ = graph.owner(tensor.name)
            if base not in homes:
                lives.setdefault(base, _Life(base, graph.activations[base], index, index)).last = index
    regions: dict[tuple[object, ...], list[_Life]] = {}
    for life in lives.values():
        regions.setdefault(life.region, []).append(life)
    top = 0
    for members in regions.values():
        offsets, size = _first_fit(members, graph.max_batch)
        homes |= {name: Place("arena", top + offset) for name, offset in offsets.items()}
        top += size
    places = dict(homes)
    for name in graph.activations:
        base, offset = graph.owner(name)
        if base in homes and name not in homes:
            if offset and homes[base].kind != "arena":  # `Lowering` copies such an output
                raise VeltairError(f"tensor {name!r} lies inside {homes[base].kind} {base!r}, which is a whole only")
            places[name] = Place(homes[base].kind, homes[base].offset + offset)
    return Arena(places, top + SLACK_BYTES)


def _first_fit(lives: Sequence[_Life], batch: int) -> tuple[dict[str, int], int]:
    """Offsets by name, such that no two tensors that live at once overlap, and the bytes that it takes."""
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, _Life]] = []  # (offset, end, life)
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

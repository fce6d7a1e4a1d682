"""Where each activation of a model lives: one arena, places shared by tensors whose lives do not overlap.

A tensor with a halo shares its place only with tensors of the very same geometry: kernels write inside the halo
alone, so the zeros that the arena began with stay zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from veltair.compiler.graph import Graph
from veltair.compiler.ir import Activation, Halo
from veltair.profiles.artifact import ALIGNMENT, SLACK_BYTES


@dataclass(frozen=True, slots=True)
class Place:
    kind: Literal["input", "output", "arena"]
    offset: int  # bytes into the arena, or the position among the model's inputs or outputs


@dataclass(frozen=True, slots=True)
class Arena:
    places: Mapping[str, Place]  # by activation name, views included
    bytes: int


@dataclass(slots=True)
class _Life:
    tensor: Activation
    first: int
    last: int


def plan(graph: Graph) -> Arena:
    """First fit by size, largest first; sizes are those of the greatest batch."""
    inputs = {port.name: Place("input", i) for i, port in enumerate(graph.inputs)}
    homes: dict[str, Place] = dict(inputs)
    for i, port in enumerate(graph.outputs):
        homes[graph.views.get(port.name, port.name)] = Place("output", i)
    lives: dict[str, _Life] = {}
    for index, layer in enumerate(graph.layers):
        for tensor in (*layer.inputs, *layer.outputs):
            base, _ = graph.owner(tensor.name)
            if base not in homes:
                life = lives.setdefault(base, _Life(graph.activations[base], index, index))
                life.last = index
    placed: list[tuple[int, int, _Life]] = []  # (offset, end, life)
    pinned: dict[tuple[object, ...], list[tuple[int, list[_Life]]]] = {}
    top = 0
    for base, life in sorted(lives.items(), key=lambda item: -_size(item[1].tensor, graph.max_batch)):
        size = _size(life.tensor, graph.max_batch)
        if life.tensor.halo != Halo():
            continue
        clashes = sorted((o, e) for o, e, other in placed if other.first <= life.last and life.first <= other.last)
        offset = 0
        for start, end in clashes:
            if offset + size <= start:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, life))
        homes[base] = Place("arena", offset)
        top = max(top, offset + size)
    for base, life in lives.items():
        if life.tensor.halo == Halo():
            continue
        rooms = pinned.setdefault((life.tensor.physical, life.tensor.halo, life.tensor.dtype), [])
        free = [r for r in rooms if all(o.last < life.first or life.last < o.first for o in r[1])]
        if not free:
            free = [(top, [])]
            rooms.extend(free)
            top += _size(life.tensor, graph.max_batch)
        free[0][1].append(life)
        homes[base] = Place("arena", free[0][0])
    places = dict(homes)
    for name in graph.activations:
        base, offset = graph.owner(name)
        if base in homes and name not in homes:
            places[name] = Place(homes[base].kind, homes[base].offset + offset)
    return Arena(places, top + SLACK_BYTES)


def _size(tensor: Activation, batch: int) -> int:
    """Bytes at this batch, rounded up to the alignment."""
    count = int(np.prod([-d * batch if d < 0 else d for d in tensor.physical], dtype=np.int64))
    return -(-count * np.dtype(tensor.dtype).itemsize // ALIGNMENT) * ALIGNMENT

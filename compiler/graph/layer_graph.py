"""A lowered model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.profiles.artifact.manifest import Port
from veltair.types import TensorSpec


@dataclass(frozen=True, slots=True)
class Slice:
    """Where a tensor lies inside a concatenated one: from `start` on along the second dimension in memory.

    At batch 1 that is one contiguous piece: channel blocks of a blocked tensor, rows of a row-major one.

    >>> Slice("joined", start=2).whole
    'joined'
    """

    whole: str
    start: int


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """A lowered model: layers in order, and which names are views of another tensor's memory.

    >>> joined = Activation("joined", "float32", (-1, 4, 8))
    >>> slices, tensors = {"y": Slice("joined", start=2)}, {"joined": joined}
    >>> LayerGraph((), {"view": "y"}, slices, tensors, inputs=(), outputs=(), max_batch=1).owner("view")
    ('joined', 64)
    """

    layers: tuple[LayerSpec, ...]
    views: Mapping[str, str]  # name -> name of the tensor that it shares memory with, transitively resolved
    slices: Mapping[str, Slice]
    activations: Mapping[str, Activation]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    max_batch: int
    packed_buffers: tuple[Port, ...] = ()

    @property
    def input_tensors(self) -> tuple[Port, ...]:
        """The tensors that a query's inputs lie in, as in a manifest."""
        return (*(port for port in self.inputs if not port.locations), *self.packed_buffers)

    def id_bounds(self, others: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """The least and greatest id of each activation that holds ids, both inclusive. `others`: known besides."""
        known = {p.name: (p.low, p.high) for p in self.inputs if p.low is not None and p.high is not None}
        known |= others
        return known | {view: known[base] for view, base in self.views.items() if base in known}

    def owner(self, name: str) -> tuple[str, int]:
        """The tensor whose memory another one lives in, and where in it, in bytes."""
        name, offset = self.views.get(name, name), 0
        while name in self.slices:
            piece = self.slices[name]
            whole = self.activations[piece.whole]
            row = int(np.prod(whole.physical[2:], dtype=np.int64)) * np.dtype(whole.dtype).itemsize
            name, offset = piece.whole, offset + piece.start * row
        return name, offset


@dataclass(frozen=True, slots=True)
class ImportedLayers:
    """The layers of a run of ONNX nodes, in order, and the views that they need.

    >>> ImportedLayers(layers=(), views=((Activation("y", "float32", (4,)), "x"),)).views[0][1]
    'x'
    """

    layers: tuple[LayerSpec, ...]
    views: tuple[tuple[Activation, str], ...]  # a view, and the name of the tensor whose memory it shares


# Layers for a run of nodes: (nodes, values, constants, inputs, outputs, max_batch, opset); see `stitch.regions`.
NodeImporter: TypeAlias = Callable[
    [
        Sequence[onnx.NodeProto],
        Mapping[str, TensorSpec],
        Mapping[str, NDArray[Any]],
        Sequence[str],
        Sequence[str],
        int,
        int,
    ],
    ImportedLayers,
]

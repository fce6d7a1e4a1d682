"""What is left of an ONNX graph when shapes are folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from veltair.compiler.onnx.node_evaluation import Array
from veltair.profiles.artifact.manifest import Port
from veltair.types import TensorSpec


@dataclass(slots=True)
class FoldedGraph:
    """What is left of a graph: nodes in topological order, constants, and every tensor's type and shape.

    >>> FoldedGraph([], {}, {}).nodes
    []
    """

    nodes: list[onnx.NodeProto]
    constants: dict[str, Array]
    values: dict[str, TensorSpec]
    outputs: tuple[str, ...] = ()  # those that are computed, in order
    sized: Mapping[str, Port] = field(default_factory=dict)  # outputs whose extents values decide (`sized_outputs`)
    mergeable: bool = True  # whether each sample of a batch reads its own rows, whatever indices clients give

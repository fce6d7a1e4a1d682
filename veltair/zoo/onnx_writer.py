"""Writes the nodes and constants of an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper


@dataclass(slots=True)
class OnnxWriter:
    """Appends nodes with one output and constants to a graph; each method returns the name of its tensor.

    >>> graph = OnnxWriter(np.random.default_rng(0))
    >>> graph.node("Relu", ["x"], "y")
    'y'
    """

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"/{output}", **attributes))
        return output

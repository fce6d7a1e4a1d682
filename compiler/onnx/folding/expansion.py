"""What takes the place of a node: standard nodes and their constants, with names of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper

from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.node_evaluation import Array

Expansion: TypeAlias = tuple[list[onnx.NodeProto], dict[str, Array]]


class PartsOfNode:
    """What a node becomes: `nodes` and `constants` are the expansion.

    >>> parts = PartsOfNode(helper.make_node("Gelu", ["x"], ["y"], name="n"))
    >>> parts.add("Mul", [parts.input(0), parts.number(2.0)], "y")
    'y'
    >>> parts.constants
    {'n/0': array(2., dtype=float32)}
    """

    def __init__(self, node: onnx.NodeProto) -> None:
        self.fused = node
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def input(self, place: int) -> str:
        """The name of the input at this place; empty where it is left out."""
        return self.fused.input[place] if place < len(self.fused.input) else ""

    def inputs(self, count: int) -> list[str]:
        """Those of the first `count` that are not left out."""
        return [name for name in self.fused.input[:count] if name]

    def given(self, name: str, default: Any) -> Any:
        """An attribute of the node."""
        return attribute(self.fused, name, default)

    def kept(self, *names: str) -> dict[str, Any]:
        """The attributes of these names that it has."""
        return {name: value for name in names if (value := self.given(name, None)) is not None}

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node. Returns the name of its output, which is new unless it is given."""
        name = f"{self.fused.name}/{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output or name], name=name, **attributes))
        return output or name

    def append(self, node: onnx.NodeProto, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
        """Add a copy of a node, with attributes too large to be spelled out. Returns it."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.input[:], copy.output[:]
        copy.input.extend(inputs)
        copy.output.extend(outputs)
        copy.name = f"{self.fused.name}/{copy.op_type}_{len(self.nodes)}"
        self.nodes.append(copy)
        return copy

    def number(self, value: float) -> str:
        """The name of a constant of float32."""
        return self.array(np.array(value, np.float32))

    def array(self, value: Array) -> str:
        """The name of a constant."""
        name = f"{self.fused.name}/{len(self.constants)}"
        self.constants[name] = value
        return name

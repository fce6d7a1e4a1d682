"""Roundings in front of operators that only move numbers, so that steps are moved and not floats.

ONNX Runtime's tool writes a concatenation or an enlargement of quantised tensors as floats that are rounded behind it.
What is rounded first and then moved is the same; and rounded to the steps that it came from, it is those.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.folding.opaque_nodes import is_opaque
from veltair.compiler.onnx.node_attributes import attribute, text_attribute
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns.model_rewriting import ModelRewriting
from veltair.compiler.patterns.quantised.quantum import Quantum, dequantised, needed_nodes, quantum_of
from veltair.types import TensorSpec


def round_before_moves(view: ModelView) -> OnnxModel:
    """The model with the roundings of feature maps moved forward; the same one where it has none to move."""
    found = _Moves(view)
    for node in view.nodes:
        quantum = quantum_of(node, view) if node.op_type == "QuantizeLinear" else None
        if quantum is not None and _moves(view.makers.get(node.input[0]), view) and view.only_user(node.input[0]):
            found.move(node.input[0], node, quantum, node.output[0])
        else:
            found.rewriting.nodes.append(node)
    if not found.moved:
        return view.model
    found.rewriting.nodes = needed_nodes([n for n in found.rewriting.nodes if id(n) not in found.moved], view)
    return found.rewriting.model()


def _moves(node: onnx.NodeProto | None, view: ModelView) -> bool:
    """Whether a node only moves the numbers of feature maps: those that are repeated or left out included."""
    if node is None or is_opaque(node) or len(node.output) != 1 or len(view.shape_of(node.output[0])) != 4:
        return False
    if node.op_type == "Concat":
        return bool(attribute(node, "axis", 0) % 4 == 1)
    if node.op_type == "Resize":
        return text_attribute(node, "mode", "nearest") == "nearest"
    return node.op_type in ("DepthToSpace", "SpaceToDepth", "Slice")


@dataclass(slots=True)
class _Moves:
    view: ModelView
    rewriting: ModelRewriting = field(init=False)
    moved: set[int] = field(default_factory=set)  # ids of the nodes that moved floats

    def __post_init__(self) -> None:
        self.rewriting = ModelRewriting(self.view)

    def move(self, name: str, rounding: onnx.NodeProto, quantum: Quantum, result: str) -> None:
        """Write the move that makes a float tensor, of its operands as steps. result: the name of the moved steps."""
        node, view = self.view.makers[name], self.view
        tensors = len(node.input) if node.op_type == "Concat" else 1
        operands = [
            self._steps(operand, rounding, quantum, f"{result}/{place}")
            for place, operand in enumerate(node.input[:tensors])
        ]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name, copy.input[:tensors], copy.output[:] = f"{result}/{node.op_type}", operands, [result]
        self.rewriting.nodes.append(copy)
        self.rewriting.values[result] = TensorSpec(result, quantum.dtype, view.shape_of(name))
        self.moved.add(id(node))

    def _steps(self, name: str, rounding: onnx.NodeProto, quantum: Quantum, result: str) -> str:
        """The name of an operand's steps, which are written where there are none yet."""
        view, given = self.view, dequantised(name, self.view)
        if given is not None and given.quantum == quantum:
            return given.name
        if _moves(view.makers.get(name), view) and view.only_user(name) is not None:
            self.move(name, rounding, quantum, result)
        else:
            inputs = [name, *rounding.input[1:]]
            self.rewriting.add("QuantizeLinear", inputs, result, view.shape_of(name), dtype=quantum.dtype)
        return result

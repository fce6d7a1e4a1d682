"""Roundings in front of operators that only move numbers, so that steps are moved and not floats.

ONNX Runtime's tool writes a concatenation or an enlargement of quantised tensors as floats that are rounded behind it.
What is rounded first and then moved is the same; and rounded to the steps that it came from, it is those.
"""

from __future__ import annotations

from dataclasses import replace

import onnx
from onnx import helper

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.folding.opaque_nodes import is_opaque
from veltair.compiler.onnx.node_attributes import attribute, text_attribute
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns.model_rewriting import ModelRewriting
from veltair.compiler.patterns.quantised.quantum import Quantum, dequantised, needed_nodes, quantum_of


def round_before_moves(view: ModelView) -> OnnxModel:
    """The model with the roundings of feature maps moved forward; the same one where it has none to move."""
    rewriting, moved = ModelRewriting(view), set[int]()  # ids of the nodes that moved floats
    # From the last node to the first: the roundings of a move's operands are looked at in their turn.
    waiting, behind = list(view.nodes), list[onnx.NodeProto]()
    quanta = {id(n): quantum_of(n, view) for n in view.nodes if n.op_type == "QuantizeLinear"}
    while waiting:
        node = waiting.pop()
        quantum, source = quanta.get(id(node)), view.makers.get(node.input[0]) if node.input else None
        if quantum is not None and _moves(source, view) and view.only_user(node.input[0]) is not None:
            assert source is not None
            moved.add(id(source))
            move, roundings = _moved(source, node, quantum, rewriting)
            behind.append(move)
            waiting += roundings
            quanta |= {id(rounding): quantum for rounding in roundings}
        elif id(node) not in moved:
            behind.append(node)
    if not moved:
        return view.model
    rewriting.nodes = needed_nodes(behind[::-1], view)
    return rewriting.model()


def _moves(node: onnx.NodeProto | None, view: ModelView) -> bool:
    """Whether a node only moves the numbers of feature maps: those that are repeated or left out included."""
    if node is None or is_opaque(node) or len(node.output) != 1 or len(view.shape_of(node.output[0])) != 4:
        return False
    if node.op_type == "Concat":
        return bool(attribute(node, "axis", 0) % 4 == 1)
    if node.op_type == "Resize":
        return text_attribute(node, "mode", "nearest") == "nearest"
    return node.op_type in ("DepthToSpace", "SpaceToDepth", "Slice")


def _moved(
    node: onnx.NodeProto, rounding: onnx.NodeProto, quantum: Quantum, rewriting: ModelRewriting
) -> tuple[onnx.NodeProto, list[onnx.NodeProto]]:
    """A move of floats that are rounded behind it, as one of steps; and the roundings of its operands, where these are
    not such steps already.
    """
    view, result = rewriting.view, rounding.output[0]
    move, roundings = onnx.NodeProto(), list[onnx.NodeProto]()
    move.CopyFrom(node)
    move.name, move.output[:] = f"{result}/{node.op_type}", [result]
    rewriting.values[result] = replace(view.values[node.output[0]], name=result, dtype=quantum.dtype)
    for place, name in enumerate(node.input if node.op_type == "Concat" else node.input[:1]):
        given = dequantised(name, view)
        if given is not None and given.quantum == quantum:
            move.input[place] = given.name
            continue
        steps = f"{result}/{place}"
        move.input[place] = steps
        roundings.append(helper.make_node("QuantizeLinear", [name, *rounding.input[1:]], [steps], name=steps))
        rewriting.values[steps] = replace(view.values[name], name=steps, dtype=quantum.dtype)
    return move, roundings

"""Roundings in front of operators that only move numbers, so that steps are moved and not floats.

ONNX Runtime's tool writes a concatenation, an enlargement or a transposition of quantised tensors as floats that are
rounded behind it. What is rounded first and then moved is the same; and rounded to the steps that it came from, it is
those.
"""

from __future__ import annotations

from dataclasses import replace

import onnx
from onnx import helper

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.constants import needed_nodes
from veltair.compiler.onnx.folding.opaque_nodes import is_opaque
from veltair.compiler.onnx.node_attributes import attribute, text_attribute
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns.model_rewriting import ModelRewriting
from veltair.compiler.patterns.quantised.quantum import REORDERS, Quantum, dequantised, quantised_behind, quantum_of


def round_before_moves(view: ModelView) -> OnnxModel:
    """The model with roundings moved forward, and without those of steps to themselves; the same one where it has none
    of either."""
    rewriting, moved = ModelRewriting(view), set[int]()  # ids of the nodes that moved floats
    same: dict[str, str] = {}  # by what is rounded to the steps that it is, those
    # From the last node to the first: the roundings of a move's operands are looked at in their turn.
    waiting, behind = list(view.nodes), list[onnx.NodeProto]()
    quanta = {id(n): quantum_of(n, view) for n in view.nodes if n.op_type == "QuantizeLinear"}
    splits, taken = _splits_of_steps(view)
    while waiting:
        node = waiting.pop()
        if id(node) in taken:
            continue
        if id(node) in splits:
            behind.append(_split_steps(node, *splits[id(node)], rewriting))
            continue
        quantum, source = quanta.get(id(node)), view.makers.get(node.input[0]) if node.input else None
        if quantum is not None and (steps := _steps_again(node, quantum, view)):
            same[node.output[0]] = steps
            continue
        if quantum is not None and _moves(source, quantum, view) and view.only_user(node.input[0]) is not None:
            assert source is not None
            moved.add(id(source))
            move, roundings = _moved(source, node, quantum, rewriting)
            behind.append(move)
            waiting += roundings
            quanta |= {id(rounding): quantum for rounding in roundings}
        elif id(node) not in moved:
            behind.append(node)
    if not moved and not splits and not same:
        return view.model
    rewriting.nodes = needed_nodes(_renamed(behind[::-1], same), view.output_names)
    return rewriting.model()


def _steps_again(node: onnx.NodeProto, quantum: Quantum, view: ModelView) -> str:
    """What a rounding of the floats of steps to those steps gives again, where operators on steps alone read it."""
    given = dequantised(node.input[0], view)
    users = view.users_of(node.output[0])
    plain = node.output[0] not in view.output_names and all(
        user.op_type == "DequantizeLinear" or user.op_type in REORDERS for user in users
    )
    return given.name if plain and given is not None and given.quantum == quantum else ""


def _renamed(nodes: list[onnx.NodeProto], same: dict[str, str]) -> list[onnx.NodeProto]:
    """The nodes, those that read one of the names with the other in its place."""
    found = []
    for node in nodes:
        if any(name in same for name in node.input):
            given, node = node, onnx.NodeProto()
            node.CopyFrom(given)
            for place, name in enumerate(given.input):
                while name in same:
                    name = same[name]
                node.input[place] = name
        found.append(node)
    return found


def _splits_of_steps(view: ModelView) -> tuple[dict[int, tuple[str, list[onnx.NodeProto]]], set[int]]:
    """By their ids, the nodes that split steps all of whose parts are rounded to themselves: what they split, and these
    roundings; and the ids of the roundings."""
    splits = {}
    for node in view.nodes:
        given = dequantised(node.input[0], view) if node.op_type == "Split" and not is_opaque(node) else None
        behind = [quantised_behind(name, view) for name in node.output] if given is not None else []
        if given is not None and all(each is not None and each[1] == given.quantum for each in behind):
            splits[id(node)] = given.name, [each[0] for each in behind if each is not None]
    return splits, {id(rounding) for _, roundings in splits.values() for rounding in roundings}


def _split_steps(
    node: onnx.NodeProto, steps: str, roundings: list[onnx.NodeProto], rewriting: ModelRewriting
) -> onnx.NodeProto:
    """The same split, of steps."""
    values, dtype = rewriting.view.values, rewriting.view.values[steps].dtype
    split = onnx.NodeProto()
    split.CopyFrom(node)
    split.input[0] = steps
    split.output[:] = [rounding.output[0] for rounding in roundings]
    for part, name in zip(node.output, split.output, strict=True):
        rewriting.values[name] = replace(values[part], name=name, dtype=dtype)
    return split


def _moves(node: onnx.NodeProto | None, quantum: Quantum, view: ModelView) -> bool:
    """Whether a node only moves the numbers of feature maps: those that are repeated or left out included. Or whether
    it gives steps, which are rounded to themselves behind it, another shape or order.
    """
    if node is None or is_opaque(node) or len(node.output) != 1:
        return False
    given = dequantised(node.input[0], view) if node.op_type in REORDERS else None
    if given is not None and given.quantum == quantum:
        return True
    if not view.is_map(node.output[0]):
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

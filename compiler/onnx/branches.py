"""Branches whose condition is known: the nodes of one take the place of their `If`."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from veltair.compiler.onnx.constants import inner_graphs
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.node_evaluation import Array


def take_branch(node: onnx.NodeProto, condition: bool) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """The nodes and the constants of a branch, which make the outputs of the `If` under their names.

    What the branch makes for itself is renamed, since another one may use its names. Graphs inside the branch are
    renamed with it.
    """
    branch = onnx.GraphProto()
    branch.CopyFrom(attribute(node, "then_branch" if condition else "else_branch", None))
    names = {name: f"{node.name}/{name}" for inner in branch.node for name in inner.output if name}
    names |= {tensor.name: f"{node.name}/{tensor.name}" for tensor in branch.initializer}
    constants = {names[tensor.name]: numpy_helper.to_array(tensor) for tensor in branch.initializer}
    _rename(branch, names)
    ends = [
        onnx.helper.make_node("Identity", [names.get(inner.name, inner.name)], [outer], name=f"{node.name}/{outer}")
        for inner, outer in zip(branch.output, node.output, strict=True)
        if outer
    ]
    for number, inner in enumerate(branch.node):  # names inside of it need not be unique, nor be there
        inner.name = f"{node.name}/{number}/{inner.name or inner.op_type}"
    return [*branch.node, *ends], constants


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename what nodes read and make, down to the graphs inside them, except for names that those make themselves."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in inner_graphs(node):
            own = {name for n in inner.node for name in n.output} | {i.name for i in inner.input}
            _rename(inner, {old: new for old, new in names.items() if old not in own})
            for output in inner.output:
                output.name = output.name if output.name in own else names.get(output.name, output.name)

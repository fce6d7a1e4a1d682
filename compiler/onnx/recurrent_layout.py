"""Recurrent operators with the rows of the batch first (`layout` 1) become those with the steps first between
transposes: ONNX Runtime, which simplifies the model, has no others."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper

from veltair.compiler.onnx.node_attributes import attribute

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
ROWS_AND_FIRST_AXIS = [1, 0, 2]
STATES_ROWS_FIRST = [2, 0, 1, 3]  # of (steps, directions, rows, units)


def put_steps_first(graph: onnx.GraphProto) -> None:
    """Rewrite the graph's recurrent nodes of layout 1, in place.

    >>> node = helper.make_node("GRU", ["x", "w", "r"], ["y"], name="g", layout=1)
    >>> graph = helper.make_graph([node], "net", [], [])
    >>> put_steps_first(graph)
    >>> [made.op_type for made in graph.node]
    ['Transpose', 'GRU', 'Transpose']
    """
    if not any(node.op_type in RECURRENT and attribute(node, "layout", 0) for node in graph.node):
        return
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    nodes = [made for node in graph.node for made in _steps_first(node, taken)]
    del graph.node[:]
    graph.node.extend(nodes)


def _steps_first(node: onnx.NodeProto, taken: set[str]) -> Iterator[onnx.NodeProto]:
    if node.op_type not in RECURRENT or not attribute(node, "layout", 0):
        yield node
        return
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    del changed.attribute[:]
    changed.attribute.extend(a for a in node.attribute if a.name != "layout")

    def turned(name: str, part: str) -> str:
        fresh = f"{name}/{part}"
        while fresh in taken:
            fresh += "_"
        taken.add(fresh)
        return fresh

    for place in (0, 5, 6):  # x and the initial states
        if place < len(node.input) and node.input[place]:
            source = node.input[place]
            changed.input[place] = turned(source, f"{node.name}/{place}")
            yield _transpose(source, changed.input[place], ROWS_AND_FIRST_AXIS)
    after = []
    for place, name in enumerate(node.output):
        if name:
            changed.output[place] = turned(name, "steps")
            after.append(_transpose(changed.output[place], name, ROWS_AND_FIRST_AXIS if place else STATES_ROWS_FIRST))
    yield changed
    yield from after


def _transpose(source: str, target: str, order: list[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [source], [target], name=f"{target}/Transpose", perm=order)

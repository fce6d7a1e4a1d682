"""GroupNormalization becomes what exporters write for older operator sets: an instance normalisation of groups, then
factors and summands. ONNX Runtime, which simplifies the model, would write out ONNX's definition, ten operators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from veltair.compiler.onnx.folding.expansion import PartsOfNode
from veltair.compiler.onnx.node_attributes import attribute


def spell_group_norms(graph: onnx.GraphProto) -> None:
    """Rewrite the graph's nodes with constant factors and summands of float32, in place. Nodes have names.

    >>> weights = numpy_helper.from_array(np.ones(4, np.float32), "w")
    >>> node = onnx.helper.make_node("GroupNormalization", ["x", "w", "w"], ["y"], name="g", num_groups=2)
    >>> graph = onnx.helper.make_graph([node], "net", [], [], [weights])
    >>> spell_group_norms(graph)
    >>> [made.op_type for made in graph.node][:5]
    ['Reshape', 'Reshape', 'InstanceNormalization', 'Shape', 'Reshape']
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    if not any(_is_known(node, constants) for node in graph.node):
        return
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        if _is_known(node, constants):
            parts = _spelled(node, constants[node.input[1]].dims[0])
            graph.node.extend(parts.nodes)
            graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in parts.constants.items())
        else:
            graph.node.append(node)


def _is_known(node: onnx.NodeProto, constants: Mapping[str, TensorProto]) -> bool:
    if node.op_type != "GroupNormalization" or node.domain not in ("", "ai.onnx") or len(node.input) != 3:
        return False
    groups, numbers = attribute(node, "num_groups", 0), [constants.get(name) for name in node.input[1:]]
    return groups > 0 and all(
        tensor is not None
        and (tensor.data_type, len(tensor.dims)) == (TensorProto.FLOAT, 1)
        and tensor.dims[0] % groups == 0
        for tensor in numbers
    )


def _spelled(node: onnx.NodeProto, count: int) -> PartsOfNode:
    """count: of factors, which are one for each channel, or before operator set 21 for each group."""
    parts = PartsOfNode(node)
    x, groups = parts.input(0), parts.given("num_groups", 1)
    planes = parts.add("Reshape", [x, parts.array(np.array([0, 0, -1]))])
    rows = parts.add("Reshape", [planes, parts.array(np.array([0, groups, -1]))])
    ones, zeros = parts.array(np.ones(groups, np.float32)), parts.array(np.zeros(groups, np.float32))
    normal = parts.add("InstanceNormalization", [rows, ones, zeros], epsilon=parts.given("epsilon", 1e-5))
    scaled = normal if count == groups else parts.add("Reshape", [normal, parts.add("Shape", [planes])])
    for op, place in (("Mul", 1), ("Add", 2)):
        column = parts.add("Unsqueeze", [parts.input(place), parts.array(np.array([1]))])
        scaled = parts.add(op, [scaled, column])
    parts.add("Reshape", [scaled, parts.add("Shape", [x])], node.output[0])
    return parts

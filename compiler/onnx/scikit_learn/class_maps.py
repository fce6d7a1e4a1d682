"""Outputs that are lists: of dictionaries, one for each sample, or of tensors.

skl2onnx ends every classifier in a `ZipMap` unless it is told not to: the probability of each class by its label, for
each sample. The protocol has no dictionaries, so that such an output is served as the tensor below it: (batch,
classes), its columns in the order of the labels. A list of tensors, as of the probabilities of several targets, is
served as outputs `NAME/0`, `NAME/1`, …
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.onnx.constants import read_names
from veltair.compiler.onnx.node_attributes import attribute
from veltair.errors import ModelError

ZIP_MAP, DOMAIN = "ZipMap", "ai.onnx.ml"
Labels = tuple[int | str, ...]


def labels_by_output(graph: onnx.GraphProto) -> dict[str, Labels]:
    """The labels of the classes, in the order of the columns, by the output that a `ZipMap` makes.

    >>> node = onnx.helper.make_node("ZipMap", ["p"], ["y"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"])
    >>> output = onnx.helper.make_value_info("y", onnx.TypeProto())
    >>> labels_by_output(onnx.helper.make_graph([node], "g", [], [output]))
    {'y': ('no', 'yes')}
    """
    outputs = {value.name for value in graph.output}
    return {name: _labels(node) for node in graph.node if _is_map(node) for name in node.output if name in outputs}


def parts_by_output(graph: onnx.GraphProto) -> dict[str, list[tuple[str, str]]]:
    """The outputs that a list of tensors becomes, each with the tensor that it is, by the output that is the list.

    >>> node = onnx.helper.make_node("SequenceConstruct", ["p", "q"], ["y"])
    >>> output = onnx.helper.make_value_info("y", onnx.TypeProto())
    >>> parts_by_output(onnx.helper.make_graph([node], "g", [], [output]))
    {'y': [('y/0', 'p'), ('y/1', 'q')]}
    """
    outputs = {value.name for value in graph.output}
    lists = {
        name: [(f"{name}/{i}", part) for i, part in enumerate(node.input)]
        for node in graph.node
        if node.op_type == "SequenceConstruct"
        for name in node.output
        if name in outputs
    }
    read = {name for node in graph.node for name in read_names(node)} if lists else set()
    return {name: parts for name, parts in lists.items() if name not in read}


def give_tensors(proto: onnx.ModelProto, path: Path) -> None:
    """Make a matrix of each output that is a list of dictionaries, and an output of each tensor of a list, in place.

    Raises ModelError naming an output that is no tensor then, such as another sequence, and one in bfloat16.
    """
    _give_parts(proto, path)
    found = labels_by_output(proto.graph)
    for node in proto.graph.node:
        if _is_map(node) and not found.keys().isdisjoint(node.output):
            del node.attribute[:]
            node.op_type, node.domain = "Identity", ""
    for value in proto.graph.output:
        if value.name in found:
            tensor = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [None, len(found[value.name])])
            value.type.CopyFrom(tensor)
        kind = value.type.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            raise ModelError(f"{path}: output {value.name!r} is of {kind.replace('_', ' ')}; expected a tensor")
        if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16:
            raise ModelError(
                f"{path}: output {value.name!r} is bfloat16; expected another type: a Cast to float32 in the file "
                "keeps its values"
            )


def _give_parts(proto: onnx.ModelProto, path: Path) -> None:
    graph = proto.graph
    if not (found := parts_by_output(graph)):
        return
    taken = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    nodes = [node for node in graph.node if found.keys().isdisjoint(node.output)]
    outputs = list[onnx.ValueInfoProto]()
    for value in graph.output:
        parts = found.get(value.name, [])
        if not parts:
            outputs.append(value)
        for name, source in parts:
            if name in taken:
                raise ModelError(f"{path}: two tensors would be {name!r}; expected another name")
            nodes.append(onnx.helper.make_node("Identity", [source], [name], name))
            kind = value.type.sequence_type.elem_type.tensor_type.elem_type
            outputs.append(onnx.helper.make_tensor_value_info(name, kind, None))
    del graph.node[:], graph.output[:]
    graph.node.extend(nodes)
    graph.output.extend(outputs)


def as_matrix(value: Any, labels: Labels) -> NDArray[np.float32]:
    """ONNX Runtime's list of dictionaries as a matrix (batch, classes).

    >>> as_matrix([{0: 0.25, 1: 0.75}], (1, 0))
    array([[0.75, 0.25]], dtype=float32)
    """
    rows: list[Mapping[int | str, float]] = list(value)
    return np.array([[row[label] for label in labels] for row in rows], np.float32).reshape(len(rows), len(labels))


def _is_map(node: onnx.NodeProto) -> bool:
    return bool(node.op_type == ZIP_MAP and node.domain == DOMAIN)


def _labels(node: onnx.NodeProto) -> Labels:
    texts = attribute(node, "classlabels_strings", [])
    return tuple(text.decode("utf-8", "replace") for text in texts) or tuple(attribute(node, "classlabels_int64s", []))

"""Outputs that are a list of dictionaries, one for each sample: the probability of each class by its label.

skl2onnx ends every classifier in a `ZipMap` unless it is told not to. The protocol has no dictionaries, so that such an
output is served as the tensor below it: (batch, classes), its columns in the order of the labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

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
    return {node.output[0]: _labels(node) for node in graph.node if _is_map(node) and node.output[0] in outputs}


def labels_of_session(session: Any, model: Path) -> dict[str, Labels]:
    """The same of a session of ONNX Runtime and its file, which is read only where an output is such a list."""
    if not any(output.type.startswith("seq(map(") for output in session.get_outputs()):
        return {}
    return labels_by_output(onnx.load(str(model), load_external_data=False).graph)


def give_matrices(proto: onnx.ModelProto, path: Path) -> None:
    """Make a matrix of each output that is a list of dictionaries, in place.

    Raises ModelError naming an output that is no tensor then, such as a sequence, and one in bfloat16.
    """
    found = labels_by_output(proto.graph)
    for node in proto.graph.node:
        if _is_map(node) and node.output[0] in found:
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
    return tuple(text.decode() for text in texts) or tuple(attribute(node, "classlabels_int64s", []))

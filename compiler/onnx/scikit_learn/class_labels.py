"""Outputs of text, such as the names of classes: kernels give the numbers of labels.

A model takes such texts from tables and attributes of its own. Each becomes its number in the order in which the output
may have them, and whoever reads the output has the texts again (`profiles.artifact.output_layout`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.onnx.node_attributes import attribute
from veltair.errors import ModelError

CLASSES = "classlabels_strings"
CLASS_NUMBERS = {  # the attribute with classes that are numbers
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
UNKNOWN = b"_Unused"  # what a LabelEncoder gives for a key that it lacks, where the file does not say
# Operators that move elements and compute none, and the inputs whose elements these are; None: all inputs.
MOVED: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Cast", "Compress", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze"), (0,)),
    **dict.fromkeys(("ArrayFeatureExtractor", "Split", "Tile", "Transpose", "Unsqueeze"), (0,)),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), (0,)),
    "Concat": None,
    "Where": (1, 2),
}


@dataclass(slots=True)
class _Source:
    """Where the texts of an output come from."""

    labels: dict[bytes, int] = field(default_factory=dict)  # the number of each
    tables: dict[str, TensorProto] = field(default_factory=dict)
    nodes: dict[str, onnx.NodeProto] = field(default_factory=dict)  # that have texts among their outputs, by these

    def add(self, labels: Sequence[bytes]) -> list[int]:
        """The numbers of labels, of which some may be known."""
        return [self.labels.setdefault(label, len(self.labels)) for label in labels]


def number_labels(proto: onnx.ModelProto, path: Path) -> dict[str, tuple[str, ...]]:
    """Make each output of text one of numbers, in place. Returns the labels that these stand for, by output.

    Raises ModelError naming an output whose texts are not the model's own.
    """
    found = dict[str, tuple[str, ...]]()
    for value in proto.graph.output:
        if value.type.tensor_type.elem_type != TensorProto.STRING:
            continue
        source = _Source()
        if not _collect(value.name, proto.graph, source) or not _alone(value.name, proto.graph, source):
            raise ModelError(
                f"{path}: output {value.name!r} is text that does not come from tables of the file alone; expected "
                "numbers, or labels of classes. A file without this output can be served"
            )
        _number(proto.graph, source)
        value.type.tensor_type.elem_type = TensorProto.INT64
        try:
            found[value.name] = tuple(label.decode() for label in source.labels)
        except UnicodeDecodeError:
            raise ModelError(f"{path}: output {value.name!r} has labels that are not UTF-8") from None
    _number_unread(proto.graph)
    return found


def _collect(name: str, graph: onnx.GraphProto, source: _Source) -> bool:
    """Add what gives a tensor of text; False where that is not the file's own."""
    tables = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        node, table = makers.get(name), tables.get(name)
        if name in source.nodes or name in source.tables:
            continue
        if node is None:
            if table is None or table.data_type != TensorProto.STRING:
                return False
            source.tables[name] = table
            source.add(table.string_data)
            continue
        source.nodes[name] = node
        if node.op_type in CLASS_NUMBERS and name == node.output[0] and attribute(node, CLASSES, []):
            source.add(attribute(node, CLASSES, []))
        elif node.op_type == "LabelEncoder" and (texts := attribute(node, "values_strings", [])):
            source.add([*texts, attribute(node, "default_string", UNKNOWN)])
        elif node.op_type in MOVED:
            places = MOVED[node.op_type]
            waiting.extend(node.input if places is None else [node.input[place] for place in places])
        else:
            return False
    return True


def _alone(output: str, graph: onnx.GraphProto, source: _Source) -> bool:
    """Whether nothing but the output reads the texts."""
    inside = {id(node) for node in source.nodes.values()}
    names = source.nodes.keys() | source.tables.keys()
    others = {value.name for value in graph.output} - {output}
    return not names & others and all(id(node) in inside for node in graph.node if names.intersection(node.input))


def _number(graph: onnx.GraphProto, source: _Source) -> None:
    for table in source.tables.values():
        numbers = np.array(source.add(table.string_data), np.int64).reshape(tuple(table.dims))
        table.CopyFrom(numpy_helper.from_array(numbers, table.name))
    for node in {id(node): node for node in source.nodes.values()}.values():
        if node.op_type in CLASS_NUMBERS:
            _replace(node, CLASSES, CLASS_NUMBERS[node.op_type], source.add(attribute(node, CLASSES, [])))
        elif node.op_type == "LabelEncoder":
            [default] = source.add([attribute(node, "default_string", UNKNOWN)])
            _replace(node, "values_strings", "values_int64s", source.add(attribute(node, "values_strings", [])))
            _replace(node, "default_string", "default_int64", default)
        elif node.op_type == "Cast":
            node.op_type = "Identity"
            del node.attribute[:]
    texts = [value for value in graph.value_info if value.name in source.nodes]
    for value in texts:
        graph.value_info.remove(value)


def _number_unread(graph: onnx.GraphProto) -> None:
    """Labels of classifiers whose probabilities alone are read, as those that a calibration holds."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for node in graph.node:
        if node.op_type in CLASS_NUMBERS and node.output[0] not in read and (labels := attribute(node, CLASSES, [])):
            _replace(node, CLASSES, CLASS_NUMBERS[node.op_type], list(range(len(labels))))


def _replace(node: onnx.NodeProto, old: str, new: str, value: Any) -> None:
    kept = [each for each in node.attribute if each.name not in (old, new)]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(new, value)])

"""Outputs of text, such as the names of classes: kernels give the numbers of labels.

A model takes such texts from tables and attributes of its own. Each becomes its number in the order in which the output
may have them, and whoever reads the output has the texts again (`profiles.artifact.output_layout`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.onnx.constants import read_names
from veltair.errors import ModelError

CLASSES, VALUES = "classlabels_strings", "values_strings"
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
    """Where the texts of some outputs come from."""

    outputs: list[str]
    labels: dict[bytes, int] = field(default_factory=dict)  # the number of each
    tables: dict[str, TensorProto] = field(default_factory=dict)
    nodes: dict[str, onnx.NodeProto] = field(default_factory=dict)  # that have texts among their outputs, by these

    @property
    def names(self) -> set[str]:
        """The tensors of text."""
        return self.nodes.keys() | self.tables.keys()

    def add(self, labels: Sequence[bytes]) -> list[int]:
        """The numbers of labels, of which some may be known."""
        return [self.labels.setdefault(label, len(self.labels)) for label in labels]

    def join(self, other: _Source) -> None:
        """Take in the sources of outputs that have some in common."""
        self.outputs += other.outputs
        self.tables |= other.tables
        self.nodes |= other.nodes
        self.add(list(other.labels))


def number_labels(proto: onnx.ModelProto, path: Path) -> dict[str, tuple[str, ...]]:
    """Make each output of text one of numbers, in place. Returns the labels that these stand for, by output.

    Raises ModelError naming an output whose texts are not the model's own.
    """
    graph = proto.graph
    ports = {value.name: value for value in graph.output if value.type.tensor_type.elem_type == TensorProto.STRING}
    tables = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.STRING}
    makers = {name: node for node in graph.node for name in node.output} if ports else {}
    sources, found = list[_Source](), dict[str, tuple[str, ...]]()
    for name in ports:
        source = _Source([name])
        if not _collect(name, tables, makers, source):
            raise _refused(name, path)
        for other in [each for each in sources if each.names & source.names]:
            source.join(other)
            sources.remove(other)
        sources.append(source)
    for source in sources:
        if not _alone(graph, source):
            raise _refused(source.outputs[0], path)
        try:
            labels = tuple(label.decode() for label in source.labels)
        except UnicodeDecodeError:
            raise ModelError(f"{path}: output {source.outputs[0]!r} has labels that are not UTF-8") from None
        _number(graph, source, path)
        for name in source.outputs:
            ports[name].type.tensor_type.elem_type = TensorProto.INT64
            found[name] = labels
    _number_unread(graph)
    return found


def _refused(output: str, path: Path) -> ModelError:
    return ModelError(
        f"{path}: output {output!r} is text that does not come from tables of the file alone; expected numbers, or "
        "labels of classes. A file without this output can be served"
    )


def _collect(
    name: str, tables: Mapping[str, TensorProto], makers: Mapping[str, onnx.NodeProto], source: _Source
) -> bool:
    """Add what gives a tensor of text; False where that is not the file's own."""
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name in source.nodes or name in source.tables:
            continue
        if (node := makers.get(name)) is None:
            if name not in tables:
                return False
            source.tables[name] = tables[name]
            source.add(tables[name].string_data)
            continue
        source.nodes[name] = node
        if node.op_type in CLASS_NUMBERS and name == node.output[0] and (texts := _texts(node, CLASSES)):
            source.add(texts)
        elif node.op_type == "LabelEncoder" and (texts := _texts(node, VALUES)):
            source.add([*texts, _default(node)])
        elif node.op_type in MOVED:
            places = MOVED[node.op_type]
            waiting.extend(each for at, each in enumerate(node.input) if places is None or at in places)
        else:
            return False
    return True


def _alone(graph: onnx.GraphProto, source: _Source) -> bool:
    """Whether nothing but these outputs reads the texts."""
    inside, names = {id(node) for node in source.nodes.values()}, source.names
    others = {value.name for value in graph.output}.difference(source.outputs)
    return not names & others and all(id(node) in inside for node in graph.node if names.intersection(read_names(node)))


def _number(graph: onnx.GraphProto, source: _Source, path: Path) -> None:
    for table in source.tables.values():
        if prod(table.dims) != len(table.string_data):
            raise ModelError(f"{path}: constant {table.name!r} has {len(table.string_data)} texts for {[*table.dims]}")
        numbers = np.array(source.add(table.string_data), np.int64).reshape(tuple(table.dims))
        table.CopyFrom(numpy_helper.from_array(numbers, table.name))
    for node in {id(node): node for node in source.nodes.values()}.values():
        if node.op_type in CLASS_NUMBERS:
            _replace(node, CLASSES, CLASS_NUMBERS[node.op_type], source.add(_texts(node, CLASSES)))
        elif node.op_type == "LabelEncoder":
            [default] = source.add([_default(node)])
            _replace(node, VALUES, "values_int64s", source.add(_texts(node, VALUES)))
            _replace(node, "default_string", "default_int64", default)
        elif node.op_type == "Cast":
            node.op_type = "Identity"
            del node.attribute[:]
    texts = [value for value in graph.value_info if value.name in source.nodes]
    for value in texts:
        graph.value_info.remove(value)


def _number_unread(graph: onnx.GraphProto) -> None:
    """Labels of classifiers whose probabilities alone are read, as those that a calibration holds."""
    classifiers = [node for node in graph.node if node.op_type in CLASS_NUMBERS and _texts(node, CLASSES)]
    if not classifiers:
        return
    read = {name for node in graph.node for name in read_names(node)} | {value.name for value in graph.output}
    for node in classifiers:
        if read.isdisjoint(node.output[:1]):
            _replace(node, CLASSES, CLASS_NUMBERS[node.op_type], list(range(len(_texts(node, CLASSES)))))


def _texts(node: onnx.NodeProto, name: str) -> list[bytes]:
    """An attribute that is a list of texts; empty where there is none."""
    return next((list(each.strings) for each in node.attribute if each.name == name), [])


def _default(node: onnx.NodeProto) -> bytes:
    return next((each.s for each in node.attribute if each.name == "default_string"), UNKNOWN)


def _replace(node: onnx.NodeProto, old: str, new: str, value: Any) -> None:
    kept = [each for each in node.attribute if each.name not in (old, new)]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(new, value)])

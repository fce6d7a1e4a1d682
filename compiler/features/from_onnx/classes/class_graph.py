"""Rewrites a graph whose texts only pick numbers into one of numbers: features become the classes of their values.

Whatever else the graph does, with sparse tensors and rows that come and go, stays as it is: filters and views move
classes as they moved texts. So no operator on text is left, and nothing about the others has to be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.features.from_onnx.bucketize_pattern import TENSORFLOW, read_boundaries
from veltair.compiler.features.from_onnx.classes.feature_uses import EQUAL, MOVES, UseReader
from veltair.compiler.features.from_onnx.classes.value_classes import FeatureUse, ValueClasses
from veltair.compiler.features.from_onnx.crosses import CROSS, CrossReader
from veltair.compiler.features.from_onnx.hash_buckets import Hashing, find_hashing
from veltair.compiler.features.from_onnx.label_encoders import ENCODERS, KeyEncoding
from veltair.compiler.features.from_onnx.onnx_graph_index import OnnxGraphIndex
from veltair.compiler.features.from_onnx.safety_steps import nodes_needed
from veltair.compiler.features.from_onnx.tokens.split_nodes import sparse_tokens


class ClassGraph:
    """Rewrites one graph, in place: `inputs` are those that stand for features, by name.

    Use::

        ClassGraph(proto, path).rewrite()
    """

    def __init__(self, proto: onnx.ModelProto, path: Path) -> None:
        self._proto, self._path = proto, path
        self.inputs: dict[str, ValueClasses] = {}
        self._graph = OnnxGraphIndex(proto, path)
        self._reader = UseReader(self._graph)
        self.refused: list[str] = []  # why features of text stay as they are

    def rewrite(self) -> dict[str, ValueClasses]:
        """Puts classes in the place of each feature that can be. Returns the new inputs (batch, width), int64."""
        taken = self._graph.weights.keys() | self.inputs.keys()
        features = {name: self._reader.uses(name) for name in self._graph.inputs if name not in taken}
        self.refused = [use.refused for use in features.values() if use.refused and use.kind == "string"]
        uses = {tensor: use for feature in features.values() for tensor, use in feature.every().items()}
        chosen = {name: use for name, use in uses.items() if use.is_classed}
        crossed = {value: name for name, use in features.items() if not use.refused for value in use.values}
        shapes = {name: (use.kind, use.width) for name, use in features.items()}
        readers = {reader: name for name, use in chosen.items() for reader in use.readers}
        nodes: list[onnx.NodeProto] = []
        splits: dict[str, list[FeatureUse]] = {}
        for use in chosen.values():
            if use.split is not None:
                splits.setdefault(use.split.name, []).append(use)
        for node in self._graph.nodes:
            if node.name in splits:
                nodes += self._tokens(node, splits[node.name])
            elif node.name in readers and node.op_type != CROSS:
                nodes += self._replaced(node, readers[node.name], chosen[readers[node.name]])
            else:
                nodes.append(node)
        nodes, numbers = self._numbers(nodes, chosen)
        gone = {use.feature for use in chosen.values()}
        if any(use.cleaned for use in features.values()):
            nodes = nodes_needed(nodes, {output.name for output in self._proto.graph.output})
        kept = [*(value for value in self._proto.graph.input if value.name not in gone), *numbers]
        for name, use in chosen.items():
            dims = self._graph.inputs[use.feature].type.tensor_type.shape.dim
            for tensor, classes in self._classes(name, use):
                shape = [dims[0].dim_param or "batch", *(dim.dim_value for dim in dims[1:])]
                if use.separator is not None:
                    tensor, shape = f"{tensor}/padded", ["batch", f"{tensor}/tokens"]
                self.inputs[tensor] = classes
                kept.append(helper.make_tensor_value_info(tensor, TensorProto.INT64, shape))
        for part, values in (("node", nodes), ("input", kept)):
            held = getattr(self._proto.graph, part)
            del held[:]
            held.extend(values)
        crosses = CrossReader(self._proto, OnnxGraphIndex(self._proto, self._path), self.inputs, crossed, shapes)
        crosses.refused = {name: use.refused for name, use in features.items() if use.refused}
        self.inputs |= crosses.take()
        left = {value.name for value in self._proto.graph.input}  # crosses may have taken all that reads one
        self.inputs = {name: classes for name, classes in self.inputs.items() if name in left}
        return self.inputs

    def _numbers(
        self, nodes: list[onnx.NodeProto], chosen: Mapping[str, FeatureUse]
    ) -> tuple[list[onnx.NodeProto], list[onnx.ValueInfoProto]]:
        """Inputs for numbers that have classes and are reckoned with, too: nodes that read them, and the inputs."""
        renamed = {name: f"{name}/number" for name, use in chosen.items() if use.is_number}
        found, left = [], list[onnx.NodeProto]()
        for name, tensor in renamed.items():
            value = onnx.ValueInfoProto()
            value.CopyFrom(self._graph.inputs[name])
            value.name, self.inputs[tensor] = tensor, ValueClasses(name, "float", width=chosen[name].width)
            found.append(value)
        for node in nodes:
            if not renamed.keys().isdisjoint(node.input):
                copy = onnx.NodeProto()
                copy.CopyFrom(node)
                copy.input[:] = [renamed.get(given, given) for given in node.input]
                left.append(copy)
            else:
                left.append(node)
        return left, found

    def _classes(self, name: str, use: FeatureUse) -> list[tuple[str, ValueClasses]]:
        """The inputs that stand for a feature: one for each number of buckets that its values are hashed to."""
        edges = tuple(sorted(use.edges))
        return [
            (
                f"{name}/classes{place or ''}",
                ValueClasses(
                    use.feature,
                    use.kind,
                    tuple(use.keys),
                    how.buckets,
                    edges,
                    use.width,
                    form=use.form,
                    separator=use.separator,
                    strong_key=how.strong_key,
                    remainder=how.remainder,
                ),
            )
            for place, how in enumerate(sorted(use.buckets, key=repr) or [Hashing(0)])
        ]

    def _tokens(self, node: onnx.NodeProto, uses: Sequence[FeatureUse]) -> list[onnx.NodeProto]:
        """What stands for a split: the classes of tokens in a row, from inputs in which they are padded."""
        found: list[onnx.NodeProto] = []
        for tensor, classes in (pair for use in uses for pair in self._classes(use.first, use)):
            absent = classes.count - 1
            found += sparse_tokens(node, f"{tensor}/padded", tensor, absent, self._constant, whole=not found)
        return found

    def _replaced(self, node: onnx.NodeProto, name: str, use: FeatureUse) -> list[onnx.NodeProto]:
        """What stands for a node that reads a feature's values: the same on classes, for each number of buckets."""
        inputs = self._classes(name, use)
        found = []
        moved = node.op_type in MOVES or self._reader.is_text_of(node, use)
        for tensor, classes in inputs if moved else inputs[:1]:
            suffix = tensor.removeprefix(name)
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [self._behind(given, suffix, use) for given in node.input]
            if moved:
                copy.name, copy.output[0] = f"{node.name}{suffix}", f"{node.output[0]}{suffix}"
                if node.op_type == "Cast":
                    del copy.attribute[:]
                    copy.op_type = "Identity"
            elif (hashing := find_hashing(node, self._graph)) is not None:
                tensor, classes = inputs[sorted(use.buckets, key=repr).index(hashing)]
                given = self._behind(node.input[0], tensor.removeprefix(name), use)
                copy = self._mapped(node, given, classes.hashed() if classes.keys else None)
            elif node.op_type in ENCODERS:
                copy = self._mapped(node, copy.input[0], self._encoded(self._reader.encoding(node), classes))
            elif node.op_type == TENSORFLOW:
                own = read_boundaries(node, self._graph)
                limits = np.array([-np.inf, *classes.edges], np.float32)
                copy = self._mapped(node, copy.input[0], np.searchsorted(own, limits, "right").astype(np.int32))
            elif node.op_type in EQUAL:
                copy = self._equal(node, copy, classes, use)
            found.append(copy)
        return [node, *found] if moved and use.is_number else found

    @staticmethod
    def _behind(given: str, suffix: str, use: FeatureUse) -> str:
        """The tensor of classes that stands for a tensor of values."""
        return f"{given}{suffix}" if given in use.values else given

    def _equal(
        self, node: onnx.NodeProto, copy: onnx.NodeProto, classes: ValueClasses, use: FeatureUse
    ) -> onnx.NodeProto:
        value = next(given for given in node.input if given in use.values)
        key = self._reader.compared(node, value, use)
        assert key is not None  # it was found when the keys were
        limit = self._constant(f"{node.name}/class", np.array(classes.keys.index(key), np.int64))
        pairs = zip(copy.input, node.input, strict=True)
        inputs = [given if original in use.values else limit for given, original in pairs]
        return helper.make_node("Equal", inputs, node.output, node.name)

    def _mapped(self, node: onnx.NodeProto, given: str, values: NDArray[Any] | None) -> onnx.NodeProto:
        """A look-up of each class's value; without values the class itself."""
        if values is None:
            return helper.make_node("Identity", [given], node.output, node.name)
        known = self._constant(f"{node.name}/values", values)
        return helper.make_node("Gather", [known, given], node.output, node.name)

    def _encoded(self, encoding: KeyEncoding, classes: ValueClasses) -> NDArray[Any]:
        places = {key: place for place, key in enumerate(encoding.keys)}
        last = len(encoding.keys)
        own = [places.get(key, last) for key in classes.keys]
        return np.asarray(encoding.values[np.array([*own, *[last] * max(classes.buckets, 1)])])

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self._proto.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

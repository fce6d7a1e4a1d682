"""Rewrites a graph whose texts only pick numbers into one of numbers: features become the classes of their values.

Whatever else the graph does, with sparse tensors and rows that come and go, stays as it is: filters and views move
classes as they moved texts. So no operator on text is left, and nothing about the others has to be known.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.features.from_onnx.bucketize_pattern import TENSORFLOW, read_boundaries
from veltair.compiler.features.from_onnx.crosses import CROSS, CrossReader
from veltair.compiler.features.from_onnx.hash_buckets import Hashing, find_hashing
from veltair.compiler.features.from_onnx.label_encoders import ENCODERS, KeyEncoding, read_encoding
from veltair.compiler.features.from_onnx.onnx_graph_index import OnnxGraphIndex
from veltair.compiler.features.from_onnx.safety_steps import nodes_needed
from veltair.compiler.features.from_onnx.tokens.split_nodes import is_split, read_split, sparse_tokens
from veltair.compiler.features.from_onnx.tokens.text_cleaning import check_token_form, read_form
from veltair.compiler.features.from_onnx.value_classes import FeatureUse, ValueClasses
from veltair.compiler.onnx.node_attributes import attribute

MOVES = (
    *("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Transpose", "Slice", "Expand", "Tile"),
    *("Gather", "GatherND", "GatherElements", "Compress"),
)  # operators that move values of their first input, and look at none
EQUAL = ("Equal", "StringEqual")
KINDS: dict[int, Literal["int", "float", "string"]] = {
    TensorProto.STRING: "string",
    TensorProto.INT64: "int",
    TensorProto.INT32: "int",
    TensorProto.FLOAT: "float",
}


class ClassGraph:
    """Rewrites one graph, in place: `inputs` are those that stand for features, by name.

    Use::

        ClassGraph(proto, path).rewrite()
    """

    def __init__(self, proto: onnx.ModelProto, path: Path) -> None:
        self._proto, self._path = proto, path
        self.inputs: dict[str, ValueClasses] = {}
        self._graph = OnnxGraphIndex(proto, path)
        self._crosses = any(node.op_type == CROSS for node in self._graph.nodes)
        self.refused: list[str] = []  # why features of text stay as they are

    def rewrite(self) -> dict[str, ValueClasses]:
        """Puts classes in the place of each feature that can be. Returns the new inputs (batch, width), int64."""
        taken = self._graph.weights.keys() | self.inputs.keys()
        features = {name: self._uses(name) for name in self._graph.inputs if name not in taken}
        self.refused = [use.refused for use in features.values() if use.refused and use.kind == "string"]
        uses = {tensor: use for feature in features.values() for tensor, use in feature.every().items()}
        chosen = {name: use for name, use in uses.items() if use.is_classed}
        crossed = {value: name for name, use in features.items() if not use.refused for value in use.values}
        shapes = {name: (use.kind, use.width) for name, use in features.items()}
        readers = {reader: name for name, use in chosen.items() for reader in use.readers}
        nodes: list[onnx.NodeProto] = []
        splits = {use.split.name: use for use in chosen.values() if use.split is not None}
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

    def _uses(self, name: str) -> FeatureUse:
        """Follows a feature's values to whatever reads them."""
        dims = self._graph.inputs[name].type.tensor_type.shape.dim
        kind = KINDS.get(self._graph.type_of(name))
        use = FeatureUse(name, name, kind or "int", dims[1].dim_value if len(dims) > 1 else 1, {name})
        if kind is None or not 1 <= len(dims) <= 2 or dims[0].HasField("dim_value") or use.width < 1:
            expected = "[batch] or [batch, values], with a symbolic batch"
            use.refused = f"input {name!r} has shape {self._graph.shape(name)}; expected {expected}"
            return use
        self._follow(use)
        for other in use.every().values():
            use.refused = use.refused or other.refused
            if other.buckets and other.form.leaves_out:
                use.refused = f"input {name!r} is hashed without some of its characters; expected a vocabulary"
        for other in use.every().values():
            other.refused = use.refused
        return use

    def _follow(self, use: FeatureUse) -> None:
        """Looks at all that reads the values of `use`."""
        name, left = use.feature, list(use.values)
        while left and not use.refused:
            value = left.pop()
            if self._graph.is_output(value):
                use.refused = f"input {name!r} is an output, too"
            for node in self._graph.users(value):
                if node.op_type == CROSS and value in node.input[3 * int(attribute(node, "N", 0)) :]:
                    continue  # it takes the values as they are
                if use.kind == "string" and (other := self._changed(node, value, use)) is not None:
                    use.cleaned.append(other)
                    self._follow(other)
                elif self._moves(node, value) or self._is_text_of(node, use):
                    use.readers.add(node.name)
                    if node.output[0] not in use.values:
                        use.values.add(node.output[0])
                        left.append(node.output[0])
                elif self._picks(node, value, use):
                    use.readers.add(node.name)
                elif self._crosses and use.kind == "float":
                    use.is_number = True
                else:
                    use.refused = f"node {node.name!r}: operator {node.op_type} reads the values of input {name!r}"

    def _changed(self, node: onnx.NodeProto, value: str, use: FeatureUse) -> FeatureUse | None:
        """The same text in another form, or its tokens; None where a node makes neither of it."""
        if node.input[0] != value:
            return None
        if is_split(node):
            separator, form = read_split(node, use.form, self._graph)
            if use.separator is not None or use.width > 1:
                raise self._graph.error(node, f"splits what is no single text a row of input {use.feature!r}")
            tokens = node.output[1]
            return FeatureUse(use.feature, tokens, "string", 1, {tokens}, form=form, split=node, separator=separator)
        found = read_form(node, use.form, self._graph)
        if found is None:
            return None
        if use.separator is not None:
            check_token_form(node, use.form, found, use.separator, self._graph)
        made = node.output[0]
        return FeatureUse(use.feature, made, "string", use.width, {made}, form=found, separator=use.separator)

    @staticmethod
    def _moves(node: onnx.NodeProto, value: str) -> bool:
        return node.op_type in MOVES and node.input[0] == value and value not in node.input[1:]

    @staticmethod
    def _is_text_of(node: onnx.NodeProto, use: FeatureUse) -> bool:
        """A cast that changes no value: to more bits, or to the text that is hashed."""
        return (
            node.op_type == "Cast"
            and use.kind == "int"
            and attribute(node, "to", 0) in (TensorProto.INT64, TensorProto.STRING)
        )

    def _picks(self, node: onnx.NodeProto, value: str, use: FeatureUse) -> bool:
        """Whether a node makes a number of each value by its class; notes what tells classes apart."""
        if node.op_type == "Shape":
            return True
        if node.op_type == TENSORFLOW:
            use.edges.update(read_boundaries(node, self._graph).tolist())
            return True
        if use.kind == "float":
            return False
        hashing = find_hashing(node, self._graph)
        if hashing is not None and hashing.remainder <= (use.kind == "int") and node.input[0] == value:
            use.buckets.add(hashing)
            return True
        if node.op_type in ENCODERS:
            keys = self._encoding(node).keys
            use.keys |= dict.fromkeys(keys)
            return all(isinstance(key, str) == (use.kind == "string") for key in keys)
        if node.op_type in EQUAL and (key := self._compared(node, value, use)) is not None:
            use.keys[key] = None
            return True
        return False

    def _compared(self, node: onnx.NodeProto, value: str, use: FeatureUse) -> str | int | None:
        """The constant that a node compares a value with."""
        other = next((given for given in node.input if given != value), "")
        if use.kind == "string":
            return self._graph.text(other)
        number = self._graph.constant(other)
        return int(number.item()) if number is not None and number.size == 1 and number.dtype.kind in "iu" else None

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

    def _tokens(self, node: onnx.NodeProto, use: FeatureUse) -> list[onnx.NodeProto]:
        """What stands for a split: the classes of tokens in a row, from inputs in which they are padded."""
        found: list[onnx.NodeProto] = []
        for tensor, classes in self._classes(use.first, use):
            absent = classes.count - 1
            found += sparse_tokens(node, f"{tensor}/padded", tensor, absent, self._constant, whole=not found)
        return found

    def _replaced(self, node: onnx.NodeProto, name: str, use: FeatureUse) -> list[onnx.NodeProto]:
        """What stands for a node that reads a feature's values: the same on classes, for each number of buckets."""
        inputs = self._classes(name, use)
        found = []
        moved = node.op_type in MOVES or self._is_text_of(node, use)
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
                copy = self._mapped(node, copy.input[0], self._encoded(self._encoding(node), classes))
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
        key = self._compared(node, value, use)
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

    def _encoding(self, node: onnx.NodeProto) -> KeyEncoding:
        try:
            return read_encoding(node)
        except (ValueError, TypeError, OverflowError) as error:
            raise self._graph.error(node, str(error)) from None

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self._proto.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

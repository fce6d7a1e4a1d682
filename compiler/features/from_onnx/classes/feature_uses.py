"""What a graph does with the values of a feature: whether classes can stand for them, and which."""

from __future__ import annotations

from typing import Literal

import onnx
from onnx import TensorProto

from veltair.compiler.features.from_onnx.bucketize_pattern import TENSORFLOW, read_boundaries
from veltair.compiler.features.from_onnx.classes.value_classes import FeatureUse
from veltair.compiler.features.from_onnx.crosses import CROSS
from veltair.compiler.features.from_onnx.hash_buckets import find_hashing
from veltair.compiler.features.from_onnx.label_encoders import ENCODERS, KeyEncoding, read_encoding
from veltair.compiler.features.from_onnx.onnx_graph_index import OnnxGraphIndex
from veltair.compiler.features.from_onnx.tokens.split_nodes import is_split, read_split
from veltair.compiler.features.from_onnx.tokens.text_cleaning import check_token_form, read_form
from veltair.compiler.onnx.node_attributes import attribute

MOVES = (
    *("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Transpose", "Slice", "Expand", "Tile"),
    *("Gather", "GatherND", "GatherElements", "Compress"),
)  # operators that move values of their first input, and look at none
EQUAL = ("Equal", "StringEqual")
MOST_FORMS = 64  # of a text, one behind the other
KINDS: dict[int, Literal["int", "float", "string"]] = {
    TensorProto.STRING: "string",
    TensorProto.INT64: "int",
    TensorProto.INT32: "int",
    TensorProto.FLOAT: "float",
}


class UseReader:
    """Follows the values of features through a graph.

    Use::

        UseReader(graph).uses("city").is_classed
    """

    def __init__(self, graph: OnnxGraphIndex) -> None:
        self._graph = graph
        self._crosses = any(node.op_type == CROSS for node in graph.nodes)

    def uses(self, name: str) -> FeatureUse:
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

    def _follow(self, use: FeatureUse, forms: int = 0) -> None:
        """Looks at all that reads the values of `use`, the text in its original form or behind so many others."""
        name, left = use.feature, list(use.values)
        if forms > MOST_FORMS:
            use.refused = f"input {name!r} changes its form more than {MOST_FORMS} times"
        while left and not use.refused:
            value = left.pop()
            if self._graph.is_output(value):
                use.refused = f"input {name!r} is an output, too"
            for node in self._graph.users(value):
                if node.op_type == CROSS and value in node.input[3 * int(attribute(node, "N", 0)) :]:
                    continue  # it takes the values as they are
                if use.kind == "string" and (other := self._changed(node, value, use)) is not None:
                    use.cleaned.append(other)
                    self._follow(other, forms + 1)
                elif self.moves(node, value) or self.is_text_of(node, use):
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
        other = FeatureUse(use.feature, made, "string", use.width, {made}, form=found)
        other.split, other.separator = use.split, use.separator
        return other

    @staticmethod
    def moves(node: onnx.NodeProto, value: str) -> bool:
        return node.op_type in MOVES and node.input[0] == value and value not in node.input[1:]

    @staticmethod
    def is_text_of(node: onnx.NodeProto, use: FeatureUse) -> bool:
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
            keys = self.encoding(node).keys
            use.keys |= dict.fromkeys(keys)
            return all(isinstance(key, str) == (use.kind == "string") for key in keys)
        if node.op_type in EQUAL and (key := self.compared(node, value, use)) is not None:
            use.keys[key] = None
            return True
        return False

    def compared(self, node: onnx.NodeProto, value: str, use: FeatureUse) -> str | int | None:
        """The constant that a node compares a value with."""
        other = next((given for given in node.input if given != value), "")
        if use.kind == "string":
            return self._graph.text(other)
        number = self._graph.constant(other)
        return int(number.item()) if number is not None and number.size == 1 and number.dtype.kind in "iu" else None

    def encoding(self, node: onnx.NodeProto) -> KeyEncoding:
        try:
            return read_encoding(node)
        except (ValueError, TypeError, OverflowError) as error:
            raise self._graph.error(node, str(error)) from None

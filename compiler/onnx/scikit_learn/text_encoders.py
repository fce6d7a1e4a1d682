"""`OneHotEncoder` of text, as look-ups: an encoder of the categories, and a `Gather` of rows with a one in them.

Columns of text that `ArrayFeatureExtractor` takes, as it does for `OrdinalEncoder`, are taken by a `Gather`.
That is how feature columns are spelled (`features.from_onnx`), so that scikit-learn's encoders become columns too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.onnx.node_attributes import attribute

DOMAIN = "ai.onnx.ml"


def spell_encoders(proto: onnx.ModelProto) -> None:
    """Replace the encoders, and whatever takes columns of an input of text, in place.

    An encoder that refuses what is no category (`zeros` is 0) stays, and is refused by whoever reads columns.
    """
    graph = proto.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    widths = {value.name: width for value in graph.input if (width := _text_columns(value))}
    single = {name for name, width in widths.items() if width == 1}
    nodes = list[onnx.NodeProto]()
    for given in graph.node:
        node = _with_gather(given, widths, constants)
        if node.op_type == "Gather" and node.input[0] in single and _takes_all(node, constants):
            # Such a Gather keeps the shape, so that what comes from it is one text a row as well.
            nodes.append(helper.make_node("Identity", node.input[:1], node.output, node.name))
            single.add(node.output[0])
            continue
        texts = attribute(node, "cats_strings", []) if node.op_type == "OneHotEncoder" else []
        if node.domain == DOMAIN and texts and attribute(node, "zeros", 1):
            nodes += _look_up(node, texts, graph)
        else:
            nodes.append(node)
    known = {tensor.name for tensor in graph.initializer}
    graph.initializer.extend(tensor for name, tensor in constants.items() if name not in known)
    del graph.node[:]
    graph.node.extend(nodes)


def _look_up(node: onnx.NodeProto, categories: list[bytes], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    out, count = node.output[0], len(categories)
    rows = np.eye(count + 1, count, dtype=np.float32)  # the last is zeros: of what is no category
    graph.initializer.append(numpy_helper.from_array(rows, f"{out}/rows"))
    encoder = helper.make_node(
        "LabelEncoder",
        node.input[:1],
        [f"{out}/category"],
        f"{out}/category",
        domain=DOMAIN,
        keys_strings=categories,
        values_int64s=list(range(count)),
        default_int64=count,
    )
    return [encoder, helper.make_node("Gather", [f"{out}/rows", f"{out}/category"], [out], node.name, axis=0)]


def _text_columns(value: onnx.ValueInfoProto) -> int:
    """The columns of an input that is text [batch, columns]; 0 of others."""
    tensor = value.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    return dims[1] if tensor.elem_type == TensorProto.STRING and len(dims) == 2 else 0


def _with_gather(node: onnx.NodeProto, widths: Mapping[str, int], constants: dict[str, TensorProto]) -> onnx.NodeProto:
    """The node; a Gather with constant columns, added to `constants`, where it takes columns of text."""
    if node.op_type != "ArrayFeatureExtractor" or node.input[0] not in widths or node.input[1] not in constants:
        return node
    columns = numpy_helper.to_array(constants[node.input[1]]).reshape(-1).astype(np.int64)
    if not ((columns >= 0) & (columns < widths[node.input[0]])).all():
        return node  # ONNX Runtime refuses it at each query
    name = f"{node.output[0]}/columns"
    constants[name] = numpy_helper.from_array(columns, name)
    return helper.make_node("Gather", [node.input[0], name], node.output, node.name, axis=1)


def _takes_all(node: onnx.NodeProto, constants: dict[str, TensorProto]) -> bool:
    """Whether a Gather takes the one column, and keeps its axis."""
    index = constants.get(node.input[1])
    if index is None or index.data_type != TensorProto.INT64 or attribute(node, "axis", 0) not in (1, -1):
        return False
    found = numpy_helper.to_array(index)
    return found.shape == (1,) and found[0] in (0, -1)

"""Crosses of features: TensorFlow's `SparseCross`, which tf2onnx leaves as it is, becomes an input of buckets.

`tf.feature_column.crossed_column` and Keras' `HashedCrossing` write it. It gives a sparse tensor, indices, values and
shape, with one value a row where each feature has one.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.features.from_onnx.hash_buckets import BUCKETS_LIMIT
from veltair.compiler.features.from_onnx.onnx_graph_index import OnnxGraphIndex
from veltair.compiler.features.from_onnx.value_classes import ValueClasses
from veltair.compiler.onnx.node_attributes import attribute

CROSS = "SparseCross"
KINDS = {TensorProto.STRING: "string", TensorProto.INT64: "int", TensorProto.INT32: "int"}
EXPECTED = "expected inputs of the model with one text or whole number a row, [batch, 1], and a symbolic batch"


def take_crosses(proto: onnx.ModelProto, graph: OnnxGraphIndex) -> dict[str, ValueClasses]:
    """Puts an input [batch, 1] of buckets, int64, in the place of each cross. Returns what they stand for.

    Raises ModelError for a cross of anything but inputs with one value a row.
    """
    found, nodes = dict[str, ValueClasses](), list[onnx.NodeProto]()
    for node in proto.graph.node:
        if node.op_type != CROSS:
            nodes.append(node)
            continue
        name = f"{node.name}/buckets"
        found[name] = _read(node, graph)
        proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", 1]))
        nodes += _as_sparse(proto, node, name)
    if found:
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        read = {name for node in nodes for name in node.input} | {output.name for output in proto.graph.output}
        crossed = {name for classes in found.values() for name in classes.features}
        kept = [value for value in proto.graph.input if value.name in read or value.name not in crossed]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
    return found


def _read(node: onnx.NodeProto, graph: OnnxGraphIndex) -> ValueClasses:
    buckets = int(attribute(node, "num_buckets", 0))
    if not attribute(node, "hashed_output", 0) or not 1 <= buckets <= BUCKETS_LIMIT:
        raise graph.error(node, f"{buckets} buckets; expected values that are hashed to 1 to {BUCKETS_LIMIT}")
    if attribute(node, "N", 0):
        raise graph.error(node, f"crosses what other columns give, or sparse values; {EXPECTED}")
    kinds = []
    for name in node.input:
        right = name in graph.inputs and graph.type_of(name) in KINDS and graph.rows(name) == 2
        if not right:
            raise graph.error(node, f"crosses {name!r}; {EXPECTED}")
        kinds.append(KINDS[graph.type_of(name)])
    return ValueClasses(
        node.input[0],
        "string" if kinds[0] == "string" else "int",
        buckets=buckets,
        others=tuple(zip(node.input[1:], kinds[1:], strict=True)),
        cross_key=int(attribute(node, "hash_key", 0)),
    )


def _as_sparse(proto: onnx.ModelProto, node: onnx.NodeProto, name: str) -> list[onnx.NodeProto]:
    """The sparse tensor of a column of buckets, all of which are there."""
    flat = numpy_helper.from_array(np.array([-1]), f"{name}/flat")
    least = numpy_helper.from_array(np.array(0), f"{name}/least")
    proto.graph.initializer.extend([flat, least])
    indices, values, shape = node.output
    steps = (
        ("GreaterOrEqual", [name, least.name], f"{name}/there"),
        ("NonZero", [f"{name}/there"], f"{name}/places"),
        ("Transpose", [f"{name}/places"], indices),
        ("Reshape", [name, flat.name], values),
        ("Shape", [name], shape),
    )
    return [helper.make_node(op, reads, [made], f"{name}/{op}") for op, reads, made in steps if made]

"""Feature maps whose channels become the last axis: the heads of detectors, and the tokens of transformers."""

from __future__ import annotations

import onnx

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute


def channels_last(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Transpose of a blocked tensor to (N, H, W, C), or Reshape to (N, A, K, H, W) and Transpose to (N, H, W, A, K), or
    Reshape to (N, C, H W) and Transpose to (N, H W, C)."""
    source, last = node.input[0], node
    if not builder.is_made(source) or not builder.tensors[source].block:
        return False
    x = builder.tensors[source]
    order = [0, 2, 3, 1]
    if node.op_type == "Reshape":
        user = view.free_user(node.output[0])
        shape = view.shape_of(node.output[0])
        if user is None or user.op_type != "Transpose":
            return False
        if len(shape) == 5 and shape[3:] == x.shape[2:]:
            last, order = user, [0, 3, 4, 1, 2]
        elif shape == (*x.shape[:2], x.shape[2] * x.shape[3]):
            last, order = user, [0, 2, 1]
        else:
            return False
    if list(attribute(last, "perm", [])) != order or x.block < view.block:
        return False
    n, channels, height, width = x.shape
    shape = view.shape_of(last.output[0])
    if shape[0] != n:
        return False
    name = last.output[0] if len(shape) == 4 else f"{last.output[0]}/pixels"
    y = Activation(name, "float32", (n, height, width, channels))
    builder.emit(last.name, "channels_last", [x], [y])
    if len(shape) != 4:
        builder.alias(Activation(last.output[0], "float32", shape), name)
    builder.take((node, last))
    return True

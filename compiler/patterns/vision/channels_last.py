"""Feature maps whose channels become the last axis: the heads of detectors, and the tokens of transformers."""

from __future__ import annotations

import onnx

from veltair.compiler.graph.graph_builder import EIGHT_BITS, GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute


def channels_last(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Transpose of a blocked tensor to (N, H, W, C), or Reshape to (N, A, K, H, W) and Transpose to (N, H, W, A, K), or
    Reshape to (N, C, H W) and Transpose to (N, H W, C). Steps of 8 bits lie so already."""
    source, order = node.input[0], [0, 2, 3, 1]
    if not builder.is_made(source) or not builder.tensors[source].block:
        return False
    x, ends = builder.tensors[source], [node]
    n, channels, height, width = x.shape
    if node.op_type == "Reshape":
        shape = view.shape_of(node.output[0])
        if len(shape) == 5 and shape[3:] == x.shape[2:]:
            order = [0, 3, 4, 1, 2]
        elif shape == (n, channels, height * width):
            order = [0, 2, 1]
        else:
            return False
        ends = _transposes(node.output[0], view)
    steps = x.dtype in EIGHT_BITS
    turned = all(list(attribute(end, "perm", [])) == order for end in ends)
    shape = view.shape_of(ends[0].output[0]) if ends else ()
    if not ends or not turned or x.block < (channels if steps else view.block) or shape[0] != n:
        return False
    name = source
    if not steps:
        name = ends[0].output[0] if len(shape) == 4 else f"{ends[0].output[0]}/pixels"
        y = Activation(name, "float32", (n, height, width, channels))
        builder.emit(ends[0].name, "channels_last", [x], [y])
    for end in ends:
        if end.output[0] != name:
            builder.alias(Activation(end.output[0], x.dtype if steps else "float32", shape), name)
    builder.take((node, *ends))
    return True


def _transposes(name: str, view: ModelView) -> list[onnx.NodeProto]:
    """The nodes that read a tensor, where all of them transpose it and belong to no match."""
    users = list(view.users_of(name))
    transposes = all(user.op_type == "Transpose" and view.matches.is_free(user) for user in users)
    return users if transposes and name not in view.output_names else []

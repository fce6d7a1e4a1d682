"""Rows of channels that become a feature map: the tokens of a transformer in front of a convolution."""

from __future__ import annotations

import onnx

from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.graph_builder import EIGHT_BITS, GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute


def channels_first(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Transpose of (N, H, W, C) to (N, C, H, W), or of (N, H W, C) to (N, C, H W) and Reshape to (N, C, H, W), where
    that is read in blocks. Steps of 8 bits stay as they lie."""
    source, last, order = node.input[0], node, [0, 3, 1, 2]
    dtype = view.values[source].dtype
    if not builder.is_made(source) or builder.tensors[source].block or dtype not in ("float32", *EIGHT_BITS):
        return False
    given = view.shape_of(source)
    if len(given) == 3:
        user = view.free_user(node.output[0])
        if user is None or user.op_type != "Reshape":
            return False
        last, order = user, [0, 2, 1]
    shape = view.shape_of(last.output[0])
    if list(attribute(node, "perm", [])) != order or len(shape) != 4 or shape[1] != given[-1] or shape[0] != given[0]:
        return False
    if dtype in EIGHT_BITS:
        builder.alias(Activation(last.output[0], dtype, shape, shape[1]), source)
        builder.take((node, last))
        return True
    if shape[1] % LANES or shape[1] < view.block or not is_read_in_blocks(last.output[0], view):
        return False
    batch, channels, height, width = shape
    x = builder.rows(source)
    if x.dtype not in ("float32", "uint16"):
        return False
    y = Activation(last.output[0], view.dtype, shape, view.block)
    builder.emit(last.name, "channels_first", [builder.reshape(x, (batch, height, width, channels))], [y])
    builder.take((node, last))
    return True


def is_read_in_blocks(name: str, view: ModelView) -> bool:
    """Whether all that read a feature map are convolutions, or bring it to some: resized, or joined with others."""
    waiting, seen = [name], {name}
    while waiting:
        tensor = waiting.pop()
        users = view.users_of(tensor)
        if not users or tensor in view.output_names or not all(_takes_blocks(user, tensor, view) for user in users):
            return False
        further = {user.output[0] for user in users if user.op_type != "Conv"} - seen
        waiting += further
        seen |= further
    return True


def _takes_blocks(user: onnx.NodeProto, name: str, view: ModelView) -> bool:
    if not view.matches.is_free(user):
        return False
    if user.op_type == "Concat":
        return attribute(user, "axis", 0) == 1 and view.shape_of(name)[1] % view.block == 0
    return user.input[0] == name and (
        user.op_type == "Resize" or (user.op_type == "Conv" and user.input[1] in view.constants)
    )

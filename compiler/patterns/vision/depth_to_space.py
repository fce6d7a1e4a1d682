"""Channels that become pixels, in whole blocks."""

from __future__ import annotations

import onnx

from veltair.compiler.graph.graph_builder import EIGHT_BITS, GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute


def depth_to_space(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """DepthToSpace of a blocked tensor, where the channels of an output's place fill blocks; a cut behind it, too."""
    source, out = node.input[0], view.shape_of(node.output[0])
    if attribute(node, "mode", b"DCR") != b"DCR" or not builder.is_made(source):
        return False
    x = builder.tensors[source]
    steps = x.dtype in EIGHT_BITS and x.block == x.shape[1]  # in one block of all channels, as the output then is
    if not steps and (x.block != view.block or x.dtype != view.dtype or out[1] % x.block):
        return False
    nodes, last = [node], node
    user = view.free_user(node.output[0])
    if user is not None and user.op_type == "Slice" and _cuts_ends(user, view):
        nodes, last = [node, user], user
    name, block = last.output[0], out[1] if steps else x.block
    builder.emit(last.name, "depth_to_space", [x], [Activation(name, x.dtype, view.shape_of(name), block)])
    builder.take(nodes)
    return True


def _cuts_ends(node: onnx.NodeProto, view: ModelView) -> bool:
    """Whether a Slice leaves out the last rows and columns of an image alone."""
    starts, _, axes, *steps = (view.constants.get(name) for name in node.input[1:])
    if starts is None or axes is None or any(step is None or (step != 1).any() for step in steps):
        return False
    before, after = (view.shape_of(name)[:2] for name in (node.input[0], node.output[0]))
    return not starts.any() and before == after

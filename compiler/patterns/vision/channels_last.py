"""The heads of detectors: channels that move behind the pixels."""

from __future__ import annotations

import onnx

from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.lowering import Lowering
from veltair.compiler.onnx.node_attributes import attribute


def channels_last(node: onnx.NodeProto, lowering: Lowering) -> bool:
    """Transpose of a blocked tensor to (N, H, W, C), or Reshape to (N, A, K, H, W) and Transpose to (N, H, W, A, K)."""
    source, last = node.input[0], node
    if not lowering.is_made(source) or not lowering.known[source].block:
        return False
    x = lowering.known[source]
    order = [0, 2, 3, 1]
    if node.op_type == "Reshape":
        user = lowering.only_user(node.output[0])
        shape = lowering.shape_of(node.output[0])
        if user is None or user.op_type != "Transpose" or len(shape) != 5 or shape[3:] != x.shape[2:]:
            return False
        last, order = user, [0, 3, 4, 1, 2]
    if list(attribute(last, "perm", [])) != order or x.block < lowering.block:
        return False
    n, channels, height, width = x.shape
    shape = lowering.shape_of(last.output[0])
    if shape[0] != n:
        return False
    name = last.output[0] if len(shape) == 4 else f"{last.output[0]}/pixels"
    y = Activation(name, "float32", (n, height, width, channels))
    lowering.emit(lowering.spec(last.name, "channels_last", [x], [y], {}, {}, 0))
    if len(shape) != 4:
        lowering.add_view(Activation(last.output[0], "float32", shape), name)
    lowering.done.update((id(node), id(last)))
    return True

"""Element-wise chains of tensors that are in blocks already."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.epilogue import Epilogue
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.lowering import Lowering
from veltair.compiler.patterns.activations import activation_behind, activation_of
from veltair.compiler.patterns.batch_norm import scale_and_shift

Found: TypeAlias = tuple[tuple[str, ...], dict[str, NDArray[Any]], tuple[onnx.NodeProto, ...]]  # steps, weights, nodes


def elementwise(node: onnx.NodeProto, lowering: Lowering) -> bool:
    """On its own, where its inputs are in blocks already: behind no anchor, or between two consumers."""
    tensors = [name for name in node.input if name and name not in lowering.constants]
    in_blocks = (lowering.is_made(n) and lowering.known[n].block == lowering.block for n in tensors)
    if not tensors or not all(in_blocks):
        return False
    found = _combined(node, tensors, lowering) or _activated(node, lowering) or _affine(node, lowering)
    if found is None:
        return False
    steps, weights, nodes = found
    epilogue = Epilogue.behind(nodes[-1], lowering, residual=False)
    if epilogue.activation != "none":
        steps = (*steps, epilogue.activation)
    y = Activation(epilogue.output, lowering.dtype, lowering.shape_of(node.output[0]), lowering.block)
    count = int(np.prod(np.abs(y.shape)))
    inputs = [lowering.known[n] for n in tensors]
    lowering.emit(lowering.spec(node.name, "elementwise", inputs, [y], {"steps": steps}, weights, count))
    lowering.done.update((*map(id, nodes), *epilogue.swallowed))
    return True


def _combined(node: onnx.NodeProto, tensors: list[str], lowering: Lowering) -> Found | None:
    """Tensors of one shape, added or multiplied."""
    step = {"Add": "add", "Sum": "add", "Mul": "mul"}.get(node.op_type)
    if not step or len(tensors) != len(node.input) or len({lowering.shape_of(name) for name in tensors}) > 1:
        return None
    return tuple(f"{step}:{i}" for i in range(1, len(tensors))), {}, (node,)


def _affine(node: onnx.NodeProto, lowering: Lowering) -> Found | None:
    """A scale and a shift for each channel; several in a row are one."""
    channels = lowering.shape_of(node.output[0])[1]
    scale, shift = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    nodes: list[onnx.NodeProto] = []
    user: onnx.NodeProto | None = node
    while user is not None:
        step = _scale_and_shift(user, channels, lowering)
        if step is None:
            break
        scale, shift = scale * step[0], shift * step[0] + step[1]
        nodes.append(user)
        user = lowering.only_user(user.output[0])
    weights = {"scale": scale.astype(np.float32), "shift": shift.astype(np.float32)}
    return (("affine",), weights, tuple(nodes)) if nodes else None


def _scale_and_shift(
    node: onnx.NodeProto, channels: int, lowering: Lowering
) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """What a node of one computed input multiplies its channels by, and then adds to them."""
    one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    if node.op_type == "BatchNormalization":
        return scale_and_shift(node, lowering.constants)
    if node.op_type not in ("Add", "Sub", "Mul", "Div") or len(node.input) != 2:
        return None
    constant = lowering.constants.get(node.input[1])
    if constant is None and node.op_type in ("Add", "Mul"):
        constant = lowering.constants.get(node.input[0])
    if constant is None or constant.size not in (1, channels):
        return None
    if constant.size > 1 and (constant.ndim < 3 or constant.shape[-3] != channels):
        return None
    value = np.broadcast_to(constant.reshape(-1), (channels,)).astype(np.float32)
    if node.op_type in ("Add", "Sub"):
        return one, value if node.op_type == "Add" else -value
    return value if node.op_type == "Mul" else one / value, zero


def _activated(node: onnx.NodeProto, lowering: Lowering) -> Found | None:
    """An activation function, which may take all users of the node's input."""
    whole = activation_behind(node.input[0], lowering)
    if whole is not None:
        return (whole.activation,), {}, whole.nodes
    activation = activation_of(node, lowering.constants)
    return ((activation,), {}, (node,)) if activation else None

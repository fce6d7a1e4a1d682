"""Element-wise chains of tensors that are in blocks already."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.vision import ElementwiseParameters
from veltair.compiler.patterns.activations import activation_behind, activation_of
from veltair.compiler.patterns.batch_norm import scale_and_shift
from veltair.compiler.patterns.epilogue import Epilogue

Chain: TypeAlias = tuple[tuple[str, ...], dict[str, NDArray[Any]], tuple[onnx.NodeProto, ...]]  # steps, weights, nodes


def elementwise(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """A layer of its own for element-wise nodes whose inputs are in blocks already.

    These are nodes that no epilogue takes: they follow no layer of ours, or their input has other readers.
    """
    tensors = [name for name in node.input if name and name not in view.constants]
    kind = view.block, view.dtype
    if not tensors or not all(
        builder.is_made(n) and (builder.tensors[n].block, builder.tensors[n].dtype) == kind for n in tensors
    ):
        return False
    found = _match_sum_or_product(node, tensors, view) or _match_activation(node, view) or _match_affine(node, view)
    if found is None:
        return False
    steps, weights, nodes = found
    epilogue = Epilogue.behind(nodes[-1], view, builder, residual=False)
    if epilogue.activation != "none":
        steps = (*steps, epilogue.activation)
    y = Activation(epilogue.output, view.dtype, view.shape_of(node.output[0]), view.block)
    count = int(np.prod(np.abs(y.shape)))
    inputs = [builder.tensors[n] for n in tensors]
    builder.emit(node.name, "elementwise", inputs, [y], ElementwiseParameters(steps), weights, count)
    builder.take((*nodes, *epilogue.swallowed))
    return True


def _match_sum_or_product(node: onnx.NodeProto, tensors: list[str], view: ModelView) -> Chain | None:
    """A sum or a product of tensors of one shape."""
    step = {"Add": "add", "Sum": "add", "Mul": "mul"}.get(node.op_type)
    if not step or len(tensors) != len(node.input) or len({view.shape_of(name) for name in tensors}) > 1:
        return None
    return tuple(f"{step}:{i}" for i in range(1, len(tensors))), {}, (node,)


def _match_affine(node: onnx.NodeProto, view: ModelView) -> Chain | None:
    """A scale and a shift for each channel; several such nodes in a row become one step."""
    channels = view.shape_of(node.output[0])[1]
    scale, shift = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    nodes: list[onnx.NodeProto] = []
    user: onnx.NodeProto | None = node
    while user is not None:
        step = _channel_scale_and_shift(user, channels, view)
        if step is None:
            break
        scale, shift = scale * step[0], shift * step[0] + step[1]
        nodes.append(user)
        user = view.free_user(user.output[0])
    weights = {"scale": scale.astype(np.float32), "shift": shift.astype(np.float32)}
    return (("affine",), weights, tuple(nodes)) if nodes else None


def _channel_scale_and_shift(
    node: onnx.NodeProto, channels: int, view: ModelView
) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """The factors and then the summands of the channels of a node with one computed input."""
    one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    if node.op_type == "BatchNormalization":
        return scale_and_shift(node, view.constants)
    if node.op_type not in ("Add", "Sub", "Mul", "Div") or len(node.input) != 2:
        return None
    constant = view.constants.get(node.input[1])
    if constant is None and node.op_type in ("Add", "Mul"):
        constant = view.constants.get(node.input[0])
    if constant is None or constant.size not in (1, channels):
        return None
    if constant.size > 1 and (constant.ndim < 3 or constant.shape[-3] != channels):
        return None
    value = np.broadcast_to(constant.reshape(-1), (channels,)).astype(np.float32)
    if node.op_type in ("Add", "Sub"):
        return one, value if node.op_type == "Add" else -value
    return value if node.op_type == "Mul" else one / value, zero


def _match_activation(node: onnx.NodeProto, view: ModelView) -> Chain | None:
    """An activation function, which may take all users of the node's input."""
    whole = activation_behind(node.input[0], view)
    if whole is not None:
        return (whole.activation,), {}, whole.nodes
    activation = activation_of(node, view.constants)
    return ((activation,), {}, (node,)) if activation else None

"""Normalisations over the channels of blocked tensors."""

from __future__ import annotations

import numpy as np
import onnx

from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.vision import L2NormalizeParameters, LrnParameters
from veltair.compiler.onnx.node_attributes import attribute, reduced_axes


def lrn(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Local response normalisation with an exponent of 0.75."""
    shape = view.shape_of(node.input[0])
    size = attribute(node, "size", 1)
    if (
        not view.is_map(node.input[0]) or size > 2 * LANES + 1 or attribute(node, "beta", 0.75) != 0.75
    ):  # no net has another
        return False
    x = builder.to_blocked(node.input[0])
    y = Activation(node.output[0], view.dtype, shape, view.block)
    parameters = LrnParameters(size, attribute(node, "alpha", 1e-4), attribute(node, "bias", 1.0))
    flops = int(np.prod(np.abs(shape))) * (size + 4)
    builder.emit(node.name, "lrn", [x], [y], parameters, {}, flops)
    return True


def l2_normalize(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Match x / clip(|x|) from its ReduceL2 on, and the factors of the channels behind it."""
    name = node.input[0]
    shape = view.shape_of(name)
    if (
        not view.is_map(name)
        or reduced_axes(node, view.constants) not in ([1], [-3])
        or not attribute(node, "keepdims", 1)
    ):
        return False
    if not builder.is_made(name) or builder.tensors[name].block != view.block:
        return False
    least, nodes, length = 0.0, [node], node.output[0]
    user = view.free_user(length)
    while user is not None and user.op_type in ("Clip", "Max", "Expand"):
        bounds = [i for i in user.input[1:] if i]
        if user.input[0] != length or len(bounds) != 1 or bounds[0] not in view.constants:
            return False
        if user.op_type != "Expand":
            least = max(least, float(view.constants[bounds[0]].max()))
        nodes.append(user)
        length = user.output[0]
        user = view.free_user(length)
    if user is None or user.op_type != "Div" or list(user.input) != [name, length]:
        return False
    nodes.append(user)
    output, scale = user.output[0], np.ones(shape[1], np.float32)
    user = view.free_user(output)
    if user is not None and user.op_type == "Mul":
        factor = view.constants.get(user.input[1] if user.input[0] == output else user.input[0])
        if factor is not None and (factor.size == 1 or factor.shape[-3:] == (shape[1], 1, 1)):
            scale, output = scale * factor.reshape(-1).astype(np.float32), user.output[0]
            nodes.append(user)
    y = Activation(output, view.dtype, shape, view.block)
    flops = 4 * int(np.prod(np.abs(shape)))
    x = builder.tensors[name]
    builder.emit(node.name, "l2_normalize", [x], [y], L2NormalizeParameters(least), {"scale": scale}, flops)
    builder.take(nodes)
    return True

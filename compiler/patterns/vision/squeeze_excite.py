"""Squeeze-and-excite: a global mean through two small dense layers, which then scales the channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.vision import SqueezeExciteParameters
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.patterns.activations import ActivationMatch, activation_behind
from veltair.compiler.patterns.epilogue import Epilogue
from veltair.compiler.patterns.vision.pool import averages_plane


def squeeze_excite(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Match, from a plane's mean on: [1x1 convolution, activation] twice, then the product with the pool's input."""
    name, pooled = node.input[0], node.output[0]
    if not averages_plane(node, view, builder):
        return False
    nodes: list[onnx.NodeProto] = [node]
    weights: dict[str, NDArray[Any]] = {}
    functions: dict[str, str] = {}
    for role, function in (("squeeze", "hidden"), ("excite", "gate")):
        found = _pointwise_behind(pooled, view)
        if found is None:
            return False
        dense, weight, bias, activated = found
        weights |= {role: weight, f"{role}_bias": bias}
        functions[function] = activated.activation
        nodes += [dense, *activated.nodes]
        pooled = activated.output
    product = view.free_user(pooled)
    if product is None or product.op_type != "Mul" or sorted(product.input) != sorted((name, pooled)):
        return False
    x = builder.to_blocked(name)
    if x.block != view.block:
        return False
    epilogue = Epilogue.behind(product, view, builder, residual=False)
    shape = view.shape_of(product.output[0])
    y = Activation(epilogue.output, view.dtype, shape, view.block)
    flops = 2 * int(np.prod(np.abs(shape))) + 4 * weights["squeeze"].size
    squeezed = len(weights["squeeze"])
    parameters = SqueezeExciteParameters(functions["hidden"], functions["gate"], epilogue.activation, squeezed)
    builder.emit(node.name, "squeeze_excite", [x], [y], parameters, weights, flops)
    builder.take((*nodes, product, *epilogue.swallowed))
    return True


def _pointwise_behind(
    name: str, view: ModelView
) -> tuple[onnx.NodeProto, NDArray[np.float32], NDArray[np.float32], ActivationMatch] | None:
    """The 1x1 convolution that alone reads a tensor, with its weights (OC, IC), bias and activation."""
    node = view.free_user(name)
    if node is None or node.op_type != "Conv" or node.input[0] != name:
        return None
    weight = view.constants.get(node.input[1])
    bias = view.constants.get(node.input[2]) if len(node.input) > 2 else np.zeros(1, np.float32)
    activated = activation_behind(node.output[0], view)
    if weight is None or bias is None or activated is None or any(attribute(node, "pads", [0])):
        return None
    if attribute(node, "group", 1) != 1 or weight.shape[2:] != (1, 1):
        return None
    shift = np.broadcast_to(bias, weight.shape[:1]).astype(np.float32)
    return node, weight[:, :, 0, 0].astype(np.float32), shift, activated

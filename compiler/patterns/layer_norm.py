"""Layer normalisation over the last axis."""

from __future__ import annotations

import numpy as np
import onnx

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.sequence import LayerNormParameters
from veltair.compiler.onnx.node_attributes import attribute, product_of
from veltair.compiler.patterns.matmul import multiplies_in_bf16, readable_as_bf16


def layer_norm(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """A layer on rows, in bfloat16 where products in bfloat16 read its output."""
    shape, constants = view.shape_of(node.input[0]), view.constants
    shift = node.input[2] if len(node.input) > 2 else ""
    if attribute(node, "axis", -1) not in (-1, len(shape) - 1) or len([o for o in node.output if o]) > 1:
        return False
    if node.input[1] not in constants or (shift and shift not in constants) or len(shape) < 2:
        return False
    x = builder.rows(node.input[0])
    if x.dtype not in ("float32", "uint16"):
        return False
    width, rows = shape[-1], product_of(shape[:-1])
    weights = {
        "scale": np.asarray(constants[node.input[1]], np.float32).reshape(-1),
        "shift": np.asarray(constants[shift], np.float32).reshape(-1) if shift else np.zeros(width, np.float32),
    }
    if any(w.size != width for w in weights.values()):
        return False
    narrow = multiplies_in_bf16(rows, view) and readable_as_bf16(node.output[0], view)
    y = Activation(f"{node.output[0]}/rows", "uint16" if narrow else "float32", (rows, width))
    parameters = LayerNormParameters(float(attribute(node, "epsilon", 1e-5)))
    inputs = [builder.reshape(x, (rows, width))]
    builder.emit(node.name, "layer_norm", inputs, [y], parameters, weights, 8 * abs(rows) * width)
    builder.alias(Activation(node.output[0], y.dtype, shape), y.name)
    return True

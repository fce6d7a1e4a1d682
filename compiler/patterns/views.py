"""Nodes that only give a tensor another shape or name: their output is a view of the same memory."""

from __future__ import annotations

import onnx

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView


def alias(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Emits no layer: the output becomes a view of the input, row-major."""
    source = node.input[0]
    if source in view.constants or any(name in builder.deferred_outputs for name in node.input):
        return False
    if not builder.is_made(source):
        return False
    shape = view.shape_of(node.output[0])
    if node.output[0] in view.output_names and source in {p.name for p in view.inputs}:
        return False  # an input that is also an output: the imported identity copies it
    tensor = builder.rows(source)
    builder.alias(Activation(node.output[0], tensor.dtype, shape), tensor.name)
    return True

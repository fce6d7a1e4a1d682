"""Nodes that only rename memory."""

from __future__ import annotations

import onnx

from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.lowering import Lowering


def view(node: onnx.NodeProto, lowering: Lowering) -> bool:
    """A node that only renames memory."""
    source = node.input[0]
    if source in lowering.constants or any(name in lowering.region_outputs() for name in node.input):
        return False
    if not lowering.is_made(source):
        return False
    shape = lowering.shape_of(node.output[0])
    if node.output[0] in lowering.output_names and source in {p.name for p in lowering.model.inputs}:
        return False  # an input handed through is copied by the region's identity
    tensor = lowering.rows(source)
    lowering.add_view(Activation(node.output[0], tensor.dtype, shape), tensor.name)
    return True

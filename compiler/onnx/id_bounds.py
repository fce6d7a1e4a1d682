"""The ids that an input may hold, by the tables that it indexes."""

from __future__ import annotations

from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.onnx_model import OnnxModel


def id_bounds(model: OnnxModel, name: str) -> tuple[int, int] | None:
    """The least and the greatest id of an input of ids; None for others."""
    rows = [
        model.values[node.input[0]].shape[attribute(node, "axis", 0)]
        for node in model.nodes
        if node.op_type == "Gather" and node.input[1] == name
    ]
    return (0, min(rows) - 1) if rows and min(rows) > 0 else None

"""Rows of a constant where a computed tensor is expected (`onnx/folding/shape_folding.py` leaves such nodes)."""

from __future__ import annotations

import numpy as np
import onnx

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView


def constant_rows(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """A layer that writes the rows of a table, over and over."""
    (output,), table = node.output, view.constants[node.input[0]]
    shape = view.shape_of(output)
    rows = shape[0] if shape else 1
    flat = np.ascontiguousarray(table).reshape(table.shape[0] if shape else 1, -1)
    y = Activation(output, view.values[output].dtype, (rows, flat.shape[1]))
    whole = Activation(output, y.dtype, shape)
    if shape != y.shape:
        y = Activation(f"{output}/flat", y.dtype, y.shape)
    builder.emit(node.name, "constant_rows", [], [y], weights={"table": flat})
    if shape != y.shape:
        builder.alias(whole, y.name)
    return True

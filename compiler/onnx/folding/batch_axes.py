"""Tensors of known values that grow with the batch, seen along the axes that do."""

from __future__ import annotations

import numpy as np

from veltair.compiler.onnx.folding.shape_propagation import TensorFacts, same_values
from veltair.compiler.onnx.node_evaluation import Array, TensorType


def one_row(facts: TensorFacts) -> Array | None:
    """The tensor with extent 1 along the axes that grow with the batch; None where it varies along them."""
    assert facts.values is not None
    grows = [len(set(extents)) > 1 for extents in zip(*facts.shapes, strict=True)]
    row = facts.values[0][tuple(slice(0, 1) if grown else slice(None) for grown in grows)]
    if all(same_values(np.broadcast_to(row, shape), v) for shape, v in zip(facts.shapes, facts.values, strict=True)):
        return row
    return None


def with_axis_first(facts: TensorFacts, axis: int) -> TensorFacts:
    """The tensor with this axis in front."""
    assert facts.values is not None
    values = tuple(np.moveaxis(value, axis, 0) for value in facts.values)
    types = tuple(TensorType(t.kind, v.shape) for t, v in zip(facts.types, values, strict=True))
    return TensorFacts(types, values)

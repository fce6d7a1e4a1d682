"""How tensors grow with the batch: their dimensions, and known values seen along the axes that grow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from veltair.compiler.onnx.folding.shape_propagation import TensorFacts, same_values
from veltair.compiler.onnx.node_evaluation import Array, TensorType

BATCHES = (7, 11)  # the sample sizes: what differs between them depends on the batch


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


def dimension(extents: Sequence[int]) -> int | None:
    """A dimension from its extents at the sample sizes: fixed, -k for k times the batch, or None for anything else.

    >>> dimension((4, 4)), dimension((14, 22)), dimension((49, 121))
    (4, -2, None)
    """
    first = extents[0]
    if all(extent == first for extent in extents):
        return first
    times = first // BATCHES[0]
    return -times if all(e == times * b for e, b in zip(extents, BATCHES, strict=True)) else None


def has_batch_elsewhere(facts: TensorFacts) -> bool:
    """Whether a tensor has the batch in another dimension than the first, or not in proportion."""
    dims = [dimension(extents) for extents in zip(*facts.shapes, strict=True)]
    return None in dims or any(dim is not None and dim < 0 for dim in dims[1:])

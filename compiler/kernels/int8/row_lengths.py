"""A tensor of products as rows."""

from __future__ import annotations

from math import prod

from veltair.compiler.graph.layer_spec import Activation


def rows_and_width(tensor: Activation) -> tuple[int, int]:
    """A tensor as rows of its last axis in memory; rows may depend on the batch.

    >>> rows_and_width(Activation("y", "uint8", (-1, 64)))
    (-1, 64)
    """
    shape = tensor.physical
    return prod(shape[:-1]), shape[-1]

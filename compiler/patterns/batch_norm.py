"""Batch norms of rows before a dense layer, which become part of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.onnx.node_attributes import attribute

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FoldedBatchNorm:
    """A batch norm that its only reader, a dense layer, takes over: source * scale + shift.

    >>> FoldedBatchNorm("x", np.ones(2, np.float32), np.zeros(2, np.float32)).source
    'x'
    """

    source: str
    scale: Floats
    shift: Floats


def scale_and_shift(node: onnx.NodeProto, constants: Mapping[str, NDArray[Any]]) -> tuple[Floats, Floats] | None:
    """The factor and then the summand of each channel of a batch norm; None where they are no constants."""
    gamma, beta, mean, variance = (constants.get(name) for name in node.input[1:5])
    if gamma is None or beta is None or mean is None or variance is None:
        return None
    scale = gamma / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    return scale, beta - mean * scale


def find_batch_norms(view: ModelView) -> Matches:
    """Mark the batch norms of rows (n, channels) that one dense layer reads."""
    matches = Matches()
    for node in view.nodes:
        if node.op_type != "BatchNormalization" or len(view.shape_of(node.output[0])) != 2:
            continue
        user = view.only_user(node.output[0])
        if user is None or user.op_type not in ("Gemm", "MatMul") or user.input[0] != node.output[0]:
            continue
        weight, found = view.constants.get(user.input[1]), scale_and_shift(node, view.constants)
        if weight is None or weight.ndim != 2 or found is None or attribute(user, "transA", 0):
            continue
        if user.op_type == "Gemm" and len(user.input) > 2 and user.input[2] not in ("", *view.constants):
            continue
        matches.add(node, FoldedBatchNorm(node.input[0], *found), [node])
    return matches

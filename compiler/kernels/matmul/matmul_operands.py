"""What every matrix product with constant weights has: rows, packed weights, a gate, a residual, outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.kernels.codegen.emit import (
    LANES,
    Expr,
    activate,
    bf16_pair,
    lanes,
    load,
    pad_to,
    store_within,
    to_bf16_bits,
    when,
)
from veltair.compiler.kernels.codegen.multiply_add import STEP, pairs

Sides: TypeAlias = tuple[Any, Any]  # buffers of gate and residual


def packed_panels(spec: LayerSpec, panel: int) -> NDArray[Any]:
    """Weights (K, N) as (panels, K, panel), in what the layer stores them as; zeros behind the last column.

    Of a layer that reads bfloat16 (panels, K / 2, panel), in pairs.
    """
    weight = pad_to(spec.weights["weight"], 1, panel)
    packed = np.ascontiguousarray(weight.reshape(len(weight), -1, panel).transpose(1, 0, 2))
    if STEP[spec.inputs[0].dtype] > 1:
        return pairs(packed, 1)
    return to_bf16_bits(packed) if spec.attributes["storage"] == "bf16" else packed


def matmul_rows(spec: LayerSpec) -> int:
    """Rows at the greatest batch."""
    return spec.most(spec.inputs[0].shape[0])


def sides_of(spec: LayerSpec, buffers: Sequence[Any]) -> Sides:
    """Gate and residual among the buffers behind x, None for what a product has not."""
    given = list(buffers[: len(spec.inputs) - 1])
    gate = given.pop(0) if spec.attributes.get("gated") else None
    return gate, given[0] if given else None


def store_pair(
    Y: Any, low: Expr, high: Expr, sides: Sides, activation: str, row: Expr, column: Expr, width: int
) -> None:
    """Like `store_outputs`, of 32 columns; on a CPU with AVX-512-bf16."""
    if Y.dtype == "uint16" and sides == (None, None) and width % (2 * LANES) == 0:
        values = [activate(value, activation, rough=True) for value in (low, high)]
        T.buffer_store(Y, bf16_pair(*values), [row, lanes(column, 2 * LANES)])
        return
    for value, at in ((low, column), (high, T.bind(column + LANES))):
        with when(at < width):
            store_outputs(Y, value, sides, activation, row, at, width)


def store_outputs(Y: Any, value: Expr, sides: Sides, activation: str, row: Expr, column: Expr, width: int) -> None:
    """16 outputs of a product: gated, the residual added, activated, and what lies below column `width` stored, the
    first of them being below it.
    """
    gate, residual = sides
    if gate is not None:
        value = value * load(gate, row, column)
    if residual is not None:
        value = value + load(residual, row, column)
    value = T.bind(activate(value, activation, rough=Y.dtype == "uint16"))
    store_within(Y, value, row, column, width=width)

"""What every matrix product with constant weights has: rows, packed weights, a gate, a residual, outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.kernels.codegen.activation import apply_activation
from veltair.compiler.kernels.codegen.bf16 import array_to_bf16, float32_pair_to_bf16
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import masked_store, vector_load
from veltair.compiler.kernels.codegen.multiply_add import VALUES_PER_STEP
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.kernels.codegen.weight_packing import pack_bf16_pairs, pad_axis

Sides: TypeAlias = tuple[Any, Any]  # buffers of gate and residual


def packed_panels(spec: LayerSpec, panel: int) -> NDArray[Any]:
    """Weights (K, N) as (panels, K, panel), in what the layer stores them as; zeros behind the last column.

    Of a layer that reads bfloat16 (panels, K / 2, panel), in pairs.
    """
    weight = pad_axis(spec.weights["weight"], 1, panel)
    packed = np.ascontiguousarray(weight.reshape(len(weight), -1, panel).transpose(1, 0, 2))
    if VALUES_PER_STEP[spec.inputs[0].dtype] > 1:
        return pack_bf16_pairs(packed, 1)
    return array_to_bf16(packed) if spec.attributes["storage"] == "bf16" else packed


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
        values = [apply_activation(value, activation, approximate=True) for value in (low, high)]
        T.buffer_store(Y, float32_pair_to_bf16(*values), [row, ramp(column, 2 * LANES)])
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
        value = value * vector_load(gate, row, column)
    if residual is not None:
        value = value + vector_load(residual, row, column)
    value = T.bind(apply_activation(value, activation, approximate=Y.dtype == "uint16"))
    masked_store(Y, value, row, column, width=width)

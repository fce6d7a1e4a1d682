"""Parameters of matrix products: with constant weights (dense layers), and of computed matrices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from veltair.compiler.graph.parameters.base import LayerParameters


class WeightStorage(StrEnum):
    """How a dense layer with fp32 products keeps its weights."""

    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True)
class MatmulParameters(LayerParameters):
    """Parameters of "matmul" and "matmul_bf16".

    >>> MatmulParameters("relu", WeightStorage.FP32).terms()
    {'activation': 'relu', 'storage': <WeightStorage.FP32: 'fp32'>}
    """

    activation: str  # as `codegen.activation.apply_activation` names it
    storage: WeightStorage | None = None  # None for "matmul_bf16", whose weights are always bfloat16
    gated: bool = False  # the second input is a gate, which sums with their bias are multiplied by


@dataclass(frozen=True, slots=True)
class BatchedMatmulParameters(LayerParameters):
    """Parameters of "batched_matmul" and "batched_matmul_bf16": activation(scale * left @ right + bias).

    >>> BatchedMatmulParameters((0, 1, 2), (0, 2, 1), "", 0.125, "none").terms()["right_order"]
    (0, 2, 1)
    """

    left_order: tuple[int, ...]  # the transpose that makes (…, M, K) of the left operand in memory
    right_order: tuple[int, ...]  # the transpose that makes (…, K, N) of the right one
    constant: str  # the operands among the weights: "left", "right" or ""
    scale: float
    activation: str  # as `codegen.activation.apply_activation` names it

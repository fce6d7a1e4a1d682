"""Dense layers give what numpy gives, at odd sizes and on every unit."""

from __future__ import annotations

import numpy as np
import pytest
from units_check import UNITS, check, needs_amx, normal

from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.products import MatmulParameters, WeightStorage


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("rows", "depth", "width", "activation", "residual"),
    [
        (1, 33, 5, "none", ""),
        (3, 64, 16, "tanh", "float32"),
        (385, 70, 50, "gelu", ""),
        (48, 320, 96, "relu", "same"),
        (70, 289, 64, "gelu", ""),
        (-5, 40, 33, "none", "same"),
    ],
)
@pytest.mark.parametrize(("dtype", "mcpu"), UNITS)
def test_dense_layer(dtype: str, mcpu: str, rows: int, depth: int, width: int, activation: str, residual: str) -> None:
    inputs = [Activation("x", dtype, (rows, depth))]
    if residual:
        inputs.append(Activation("r", dtype if residual == "same" else residual, (rows, width)))
    weights = {"weight": normal(depth, width) / np.float32(depth**0.5), "bias": normal(width)}
    kind = "matmul" if dtype == "float32" else "matmul_bf16"
    parameters = MatmulParameters(activation, WeightStorage.FP32 if kind == "matmul" else None)
    for out in {dtype, "float32"}:
        y = Activation("y", out, (rows, width))
        check(LayerSpec("dense", kind, tuple(inputs), (y,), weights, 0, 3, parameters), mcpu, batch=3)


@needs_amx
def test_rows_that_are_fetched_ahead() -> None:
    """More than L2 holds of a sweep, whose next one begins behind the last row."""
    weights = {"weight": normal(3100, 40) / np.float32(55), "bias": normal(40)}
    x, y = Activation("x", "uint16", (-1, 3100)), Activation("y", "float32", (-1, 40))
    spec = LayerSpec("dense", "matmul_bf16", (x,), (y,), weights, 0, 530, MatmulParameters("relu"))
    for batch in (530, 3):
        check(spec, "", batch)

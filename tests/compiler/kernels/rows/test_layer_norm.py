"""Layer norm gives what numpy gives, at odd sizes and on every unit."""

from __future__ import annotations

import pytest
from units_check import UNITS, check, normal

from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.sequence import LayerNormParameters


@pytest.mark.parametrize(("dtype", "mcpu"), UNITS)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (7, 33), (-3, 768)])
def test_layer_norm(dtype: str, mcpu: str, rows: int, width: int) -> None:
    inputs = (Activation("x", "float32", (rows, width)),)
    weights = {"scale": normal(width), "shift": normal(width)}
    y = Activation("y", dtype, (rows, width))
    spec = LayerSpec("norm", "layer_norm", inputs, (y,), weights, 0, 3, LayerNormParameters(1e-12))
    check(spec, mcpu, batch=3)

"""Turned matrices equal numpy's: whole tiles, and rows and columns that fill none."""

from __future__ import annotations

import pytest
from run_kernels import compile_ahead, run_and_compare
from units_check import normal

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.machine.isa import cpu_features


@pytest.mark.parametrize("mcpu", ["", "haswell"])
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (196, 40), (50, 17), (19, 320)])
def test_transpose(rows: int, columns: int, mcpu: str) -> None:
    x, y = Activation("x", "float32", (-2, rows, columns)), Activation("y", "float32", (-2, columns, rows))
    spec = LayerSpec("turn", "transpose", (x,), (y,), {}, 0, max_batch=3)
    for point in compile_ahead(spec, SPACES["transpose"].points(spec, cpu_features()), mcpu):
        error, _ = run_and_compare(spec, point, [normal(6, rows, columns)], 3, mcpu)
        assert error == 0

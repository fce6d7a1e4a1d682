"""Turned matrices, of numbers and of rows, equal numpy's: whole tiles, and what fills none."""

from __future__ import annotations

import numpy as np
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


@pytest.mark.parametrize(("dtype", "mcpu"), [("uint8", ""), ("int8", "haswell")])
@pytest.mark.parametrize(
    "sizes", [(16, 16), (50, 17), (19, 320), (384, 12, 64), (3, 5, 16), (2, 20, 83), (7, 1, 200)], ids=str
)
def test_transpose_of_steps(sizes: tuple[int, ...], dtype: str, mcpu: str) -> None:
    rows, columns, *row = sizes
    x, y = Activation("x", dtype, (-2, *sizes)), Activation("y", dtype, (-2, columns, rows, *row))
    spec = LayerSpec("turn", "transpose", (x,), (y,), {}, 0, max_batch=3)
    steps = np.random.default_rng(0).integers(0, 256, (6, *sizes)).astype(np.uint8).view(dtype)
    for point in compile_ahead(spec, SPACES["transpose"].points(spec, cpu_features()), mcpu):
        error, _ = run_and_compare(spec, point, [steps], 3, mcpu)
        assert error == 0

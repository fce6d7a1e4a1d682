"""Blocked products of many rows give what numpy gives, wherever rows, columns and depth end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from run_kernels import OLDER_CPUS, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec, Point
from veltair.compiler.graph.parameters.products import MatmulParameters, WeightStorage
from veltair.machine.isa import ISAS

MOST = 80  # rows


def layer(depth: int, width: int, inputs: int = 1, activation: str = "relu", gated: bool = False) -> LayerSpec:
    random = np.random.default_rng(depth)
    weights = {"weight": random.standard_normal((depth, width), np.float32) / np.float32(depth**0.5)}
    weights["bias"] = random.standard_normal(width, np.float32)
    x, y = Activation("x", "float32", (-1, depth)), Activation("y", "float32", (-1, width))
    sides = tuple(Activation(f"side{i}", "float32", (-1, width)) for i in range(inputs - 1))
    parameters = MatmulParameters(activation, WeightStorage.FP32, gated)
    return LayerSpec("m", "matmul", (x, *sides), (y,), weights, 0, MOST, parameters)


def error(spec: LayerSpec, point: Point, rows: int, mcpu: str = "") -> float:
    random = np.random.default_rng(rows)
    values = [random.standard_normal((rows, tensor.shape[1]), np.float32) for tensor in spec.inputs]
    return run_and_compare(spec, point, values, rows, mcpu)[0]


@pytest.mark.parametrize("rows", [1, 31, MOST])
@pytest.mark.parametrize(("depth", "width"), [(100, 70), (64, 16), (13, 33)])
def test_rows_columns_and_depth_end_anywhere(rows: int, depth: int, width: int) -> None:
    columns = 2 if width > 16 else 1
    point: Point = {"columns": columns, "rows": 6, "tall": 2, "panels": 3, "stretch": 32}
    assert error(layer(depth, width), point, rows) < 1e-5


@pytest.mark.parametrize("gated", [False, True])
def test_gate_and_residual_come_after_the_last_stretch(gated: bool) -> None:
    spec = layer(100, 40, 2 + gated, activation="none", gated=gated)
    assert error(spec, {"columns": 2, "rows": 4, "tall": 3, "panels": 1, "stretch": 48}, 29) < 1e-5


@pytest.mark.parametrize("mcpu", ["haswell", "skylake-avx512"])
def test_points_of_the_space(mcpu: str) -> None:
    spec = layer(300, 200)
    points = [point for point in SPACES["matmul"].points(spec, OLDER_CPUS[mcpu]) if "panels" in point]
    assert {point["stretch"] for point in points} == {256, 512}
    assert all(error(spec, point, MOST, mcpu) < 1e-5 for point in points[::12])


def test_few_rows_are_not_copied() -> None:
    few = replace(layer(64, 64), max_batch=4)
    assert not any("panels" in point for point in SPACES["matmul"].points(few, ISAS["avx512"]))

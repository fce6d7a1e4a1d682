"""Depthwise convolutions of 8-bit integers equal exact sums, rounded once, on every instruction set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from int8_products import DILATED, SQUARE, STRIDED, Parameters, agrees, product
from run_kernels import OLDER_CPUS

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.quantised import Addend, Window
from veltair.machine.isa import cpu_features

WIDE = Window((3, 5), (1, 2), (1, 1), (0, 3, 2, 1))  # pads that differ on each side
WHOLE = Window((7, 7), (1, 1), (1, 1), (0, 0, 0, 0))


def depthwise(
    x: tuple[int, ...], y: tuple[int, ...], parameters: Parameters, dtypes: tuple[str, str] = ("uint8", "uint8")
) -> LayerSpec:
    spec = product(x, y, parameters, dtypes)
    assert parameters.window is not None
    taps = parameters.window.kernel[0] * parameters.window.kernel[1]
    weights: dict[str, Any] = dict(spec.weights)
    weights["weight"] = np.resize(weights["weight"][:, : x[1]], (taps, x[1]))
    weights["scale"] = (weights["scale"] * x[1] ** 0.5).astype(np.float32)  # a sum has fewer products
    if parameters.whole_bias:
        weights["bias"] = (np.rint(weights["bias"] / weights["scale"]) * weights["scale"]).astype(np.float32)
    return replace(spec, op="depthwise_int8", weights=weights)


CASES = {
    "3x3": depthwise((-1, 32, 6, 7), (-1, 32, 6, 7), Parameters("clip:0.0:6.0", SQUARE)),
    "strided, channels that fill no vector": depthwise(
        (-1, 20, 11, 11), (-1, 20, 6, 6), Parameters("relu", STRIDED), ("int8", "uint8")
    ),
    "dilated, with a residual": depthwise(
        (-1, 16, 7, 7), (-1, 16, 7, 7), Parameters("none", DILATED, Addend.RESIDUAL, "uint8", "relu")
    ),
    "pads that differ, a bias behind": depthwise(
        (-1, 48, 6, 8), (-1, 48, 6, 4), Parameters("none", WIDE, Addend.BIAS), ("int8", "int8")
    ),
    "dynamic": depthwise(
        (-1, 16, 5, 5), (-1, 16, 5, 5), Parameters("none", SQUARE, dynamic=True), ("uint8", "float32")
    ),
    "a window as large as the map": depthwise((-1, 16, 7, 7), (-1, 16, 1, 1), Parameters("none", WHOLE)),
    "a bias of whole steps, saturated": depthwise(
        (-1, 20, 6, 7), (-1, 20, 6, 7), Parameters("none", SQUARE, whole_bias=True, saturates=True), ("int8", "uint8")
    ),
    "wide weights, a bias of whole steps": depthwise(
        (-1, 16, 5, 5), (-1, 16, 5, 5), Parameters("relu", SQUARE, wide=True, whole_bias=True)
    ),
    "wide weights": depthwise((-1, 16, 5, 5), (-1, 16, 5, 5), Parameters("none", SQUARE, wide=True)),
}


@pytest.mark.parametrize("mcpu", ["", "skylake-avx512", "haswell"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_the_reference(name: str, mcpu: str) -> None:
    points = SPACES["depthwise_int8"].points(CASES[name], OLDER_CPUS.get(mcpu, cpu_features()))
    agrees(CASES[name], points[-1], 3, mcpu)

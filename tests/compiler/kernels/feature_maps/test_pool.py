"""Pools at odd sizes."""

from __future__ import annotations

from typing import Any

import pytest
from feature_map_layers import PRECISIONS, Size, check, layer

from veltair.compiler.graph.layer_spec import Activation, Halo
from veltair.compiler.graph.parameters.vision import (
    Pool2dParameters,
    PoolKind,
)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["max", "avg", "avg with padding"])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads"),
    [
        ((2, 2), (1, 1), (0, 0, 1, 1)),
        ((2, 2), (2, 2), (0, 0, 0, 0)),
        ((3, 3), (1, 1), (1, 1, 1, 1)),
        ((3, 2), (2, 3), (0, 1, 2, 0)),
        ((7, 9), (1, 2), (3, 4, 2, 0)),
    ],
)
def test_pooling(precision: tuple[str, int, float], kind: str, kernel: Size, strides: Size, pads: Any) -> None:
    dtype, block, tolerance = precision
    x = Activation("x", dtype, (1, 40, 9, 14), block, Halo(1, 0, 2, 1))
    oh, ow = (
        (9 + pads[0] + pads[2] - kernel[0]) // strides[0] + 1,
        (14 + pads[1] + pads[3] - kernel[1]) // strides[1] + 1,
    )
    y = Activation("y", dtype, (1, 40, oh, ow), block, Halo(1, 1, 1, 1))
    parameters = Pool2dParameters(kernel, strides, pads, PoolKind(kind[:3]), int(kind == "avg with padding"))
    check(layer("pool2d", (x,), y, parameters), tolerance, shift=-3)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("plane", [(1, 1), (3, 5), (7, 20)])
def test_global_average(precision: tuple[str, int, float], plane: tuple[int, int]) -> None:
    dtype, block, _ = precision
    x = Activation("x", dtype, (2, 40, *plane), block, Halo(1, 0, 2, 1))
    y = Activation("y", "float32", (2, 40, 1, 1))
    check(layer("global_average_pool", (x,), y), 1e-6)

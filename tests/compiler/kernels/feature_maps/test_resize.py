"""Linear interpolation of feature maps between any rows and columns."""

from __future__ import annotations

import numpy as np
import pytest
from feature_map_layers import PRECISIONS, check, layer, random

from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec
from veltair.compiler.graph.parameters.vision import ResizeParameters


def resized(precision: tuple[str, int, float], size: tuple[int, int], residual: bool = False) -> LayerSpec:
    dtype, block, _ = precision
    x = Activation("x", dtype, (2, 40, 9, 14), block, Halo(1, 0, 2, 1))
    y = Activation("y", dtype, (2, 40, *size), block, Halo(1, 1, 1, 1))
    r = Activation("r", dtype, y.shape, block, Halo(0, 1, 0, 2))
    weights = {}
    for names, extent, count in ((("above", "below", "down"), 9, size[0]), (("left", "right", "across"), 14, size[1])):
        taps = random.integers(0, extent, (2, count)).astype(np.int32)
        weights |= dict(zip(names, (*taps, random.random(count).astype(np.float32)), strict=True))
    inputs = (x, r) if residual else (x,)
    return layer("resize", inputs, y, ResizeParameters("relu" if residual else "none"), weights)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [(1, 1), (18, 28), (5, 3), (30, 17)])
def test_any_rows_and_columns(precision: tuple[str, int, float], size: tuple[int, int]) -> None:
    check(resized(precision, size), precision[2])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_with_an_epilogue(precision: tuple[str, int, float]) -> None:
    check(resized(precision, (18, 28), residual=True), precision[2])

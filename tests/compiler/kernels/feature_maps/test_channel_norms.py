"""Normalisations over channels at odd sizes."""

from __future__ import annotations

import numpy as np
import pytest
from feature_map_layers import PRECISIONS, check, layer, random

from veltair.compiler.graph.layer_spec import Activation, Halo
from veltair.compiler.graph.parameters.vision import (
    L2NormalizeParameters,
    LrnParameters,
)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("channels", [16, 33, 70])
def test_normalisation_over_channels(precision: tuple[str, int, float], channels: int) -> None:
    dtype, block, tolerance = precision
    x = Activation("x", dtype, (2, channels, 5, 7), block, Halo(1, 0, 2, 1))
    y = Activation("y", dtype, x.shape, block, Halo(0, 1, 0, 1))
    scale = {"scale": random.uniform(5, 20, channels).astype(np.float32)}
    check(layer("l2_normalize", (x,), y, L2NormalizeParameters(1e-12), scale), tolerance)
    for size in (5, 3, 1):
        check(layer("lrn", (x,), y, LrnParameters(size, alpha=0.9, bias=1.5)), tolerance)

"""Squeeze-and-excite at an odd size."""

from __future__ import annotations

import numpy as np
import pytest
from feature_map_layers import PRECISIONS, check, layer, random

from veltair.compiler.graph.layer_spec import Activation, Halo
from veltair.compiler.graph.parameters.vision import (
    SqueezeExciteParameters,
)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_squeeze_and_excite(precision: tuple[str, int, float]) -> None:
    dtype, block, tolerance = precision
    x = Activation("x", dtype, (2, 70, 5, 11), block, Halo(1, 0, 2, 1))
    y = Activation("y", dtype, x.shape, block, Halo(0, 1, 0, 1))
    weights = {
        "squeeze": random.standard_normal((18, 70)),
        "squeeze_bias": random.standard_normal(18),
        "excite": random.standard_normal((70, 18)),
        "excite_bias": random.standard_normal(70),
    }
    functions = SqueezeExciteParameters("gated-sigmoid", "hardsigmoid:0.2:0.5", "relu", squeezed=18)
    floats = {name: weight.astype(np.float32) for name, weight in weights.items()}
    check(layer("squeeze_excite", (x,), y, functions, floats), tolerance, shift=1)

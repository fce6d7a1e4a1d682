"""Changes of layout at odd sizes."""

from __future__ import annotations

import pytest
from feature_map_layers import PRECISIONS, check, layer

from veltair.compiler.graph.layer_spec import Activation, Halo


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("shape", "halo"),
    [
        ((2, 40, 7, 9), Halo(1, 2, 0, 3)),
        ((1, 5, 3, 37), Halo()),
        ((1, 64, 13, 13), Halo()),
        ((2, 33, 4, 16), Halo(0, 1)),
    ],
)
def test_layouts(precision: tuple[str, int, float], shape: tuple[int, ...], halo: Halo) -> None:
    dtype, block, _ = precision
    n, c, h, w = shape
    plain, blocked = Activation("p", "float32", shape), Activation("b", dtype, shape, block, halo)
    tolerance = 4e-3 if dtype == "uint16" else 0.0
    check(layer("to_blocked", (plain,), blocked), tolerance + 1e-9)
    check(layer("to_plain", (blocked,), plain), 1e-9)
    check(layer("channels_last", (blocked,), Activation("y", "float32", (n, h, w, c))), 1e-9)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images_become_one_block(precision: tuple[str, int, float], channels: int) -> None:
    shape = (2, channels, 5, {1: 16, 2: 35, 3: 37, 4: 11}[channels])
    plain = Activation("p", "float32", shape)
    folded = Activation("b", precision[0], shape, channels, Halo(2, 3, 1, 4))
    check(layer("to_blocked", (plain,), folded), 4e-3)

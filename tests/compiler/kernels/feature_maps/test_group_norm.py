"""Group normalisation where groups and blocks of channels do not meet, in chunks of rows that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from feature_map_layers import PRECISIONS, check, layer, random

from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec
from veltair.compiler.graph.parameters.vision import GroupNormParameters


def norm(
    precision: tuple[str, int, float],
    channels: int,
    groups: int,
    size: tuple[int, int] = (9, 14),
    activation: str = "none",
    residual: bool = False,
) -> LayerSpec:
    dtype, block, _ = precision
    x = Activation("x", dtype, (2, channels, *size), block, Halo(1, 0, 2, 1))
    y = Activation("y", dtype, x.shape, block, Halo(1, 1, 1, 1))
    r = Activation("r", dtype, x.shape, block, Halo(0, 1, 0, 2))
    weights = {name: random.standard_normal(channels).astype(np.float32) for name in ("scale", "shift")}
    inputs = (x, r) if residual else (x,)
    return layer("group_norm", inputs, y, GroupNormParameters(groups, 1e-5, activation), weights)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("channels", "groups"),
    [
        pytest.param(40, 40, id="a channel each"),
        pytest.param(64, 32, id="two channels each"),
        pytest.param(64, 2, id="blocks each"),
        pytest.param(60, 5, id="across blocks"),
        pytest.param(40, 1, id="one group"),
    ],
)
def test_groups_of_any_size(precision: tuple[str, int, float], channels: int, groups: int) -> None:
    check(norm(precision, channels, groups), precision[2])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (21, 5), (1, 1030), (1, 8195)])
def test_of_any_size(precision: tuple[str, int, float], size: tuple[int, int]) -> None:
    check(norm(precision, 24, 3, size), precision[2])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("activation", ["relu", "gated-sigmoid"])
def test_with_an_epilogue(precision: tuple[str, int, float], activation: str) -> None:
    check(norm(precision, 48, 48, activation=activation, residual=True), precision[2])


@pytest.mark.parametrize("groups", [40, 5])
def test_a_mean_that_is_large_beside_the_deviation(groups: int) -> None:
    check(norm(("float32", 16, 0), 40, groups, (30, 40)), 1e-3, shift=1000)


def test_older_cpus() -> None:
    check(norm(("float32", 16, 0), 60, 5), 1e-5, mcpu="haswell")

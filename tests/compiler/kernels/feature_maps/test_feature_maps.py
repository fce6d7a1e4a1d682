"""Kernels on feature maps for older instruction sets."""

from __future__ import annotations

import pytest
from feature_map_layers import check, layer
from run_kernels import OLDER_CPUS, require_features

from veltair.compiler.graph.layer_spec import Activation, Halo
from veltair.compiler.graph.parameters.vision import (
    ElementwiseParameters,
    LrnParameters,
    Pool2dParameters,
    PoolKind,
)


@pytest.mark.parametrize("mcpu", sorted(OLDER_CPUS))
def test_code_for_lesser_instruction_sets(mcpu: str) -> None:
    require_features(OLDER_CPUS[mcpu], f"code for {mcpu}")
    plain = Activation("p", "float32", (1, 21, 5, 18))
    x, y = (Activation(name, "float32", plain.shape, 16, Halo(1, 1, 1, 1)) for name in "xy")
    window = Pool2dParameters((3, 3), (1, 1), (1, 1, 1, 1), PoolKind.MAXIMUM, 0)
    both = Activation("z", "float32", (1, 42, 5, 18), 16)
    for spec in (
        layer("to_blocked", (plain,), x),
        layer("to_plain", (x,), plain),
        layer("pool2d", (x,), y, window),
        layer("lrn", (x,), y, LrnParameters(5, alpha=0.5, bias=1.0)),
        layer("concat", (x, y), both),
        layer("elementwise", (x,), y, ElementwiseParameters(("gated-sigmoid", "gelu"))),
        layer("elementwise", (x,), y, ElementwiseParameters(("elu:1.0",))),
    ):
        check(spec, 1e-5, mcpu=mcpu)

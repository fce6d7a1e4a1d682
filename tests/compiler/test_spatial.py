"""Kernels between convolutions: layouts, pooling and normalisation at odd sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from kernels import LESSER, ahead, need, untouched_halo, worst_error
from numpy.typing import NDArray

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec
from veltair.compiler.graph.parameters import LayerParameters
from veltair.compiler.graph.parameters.vision import (
    ElementwiseParameters,
    L2NormalizeParameters,
    LrnParameters,
    Pool2dParameters,
    PoolKind,
    SqueezeExciteParameters,
)
from veltair.machine.isa import cpu_features

FP32, BF16 = ("float32", 16, 1e-5), ("uint16", 32, 1.5e-2)
needs_amx = pytest.mark.skipif("amx_bf16" not in cpu_features(), reason="this CPU has no AMX bfloat16 tiles")
PRECISIONS = [pytest.param(FP32, id="fp32"), pytest.param(BF16, id="bf16", marks=needs_amx)]
Size = tuple[int, int]
random = np.random.default_rng(11)


def layer(
    op: str,
    inputs: tuple[Activation, ...],
    output: Activation,
    parameters: LayerParameters | None = None,
    weights: Mapping[str, NDArray[Any]] | None = None,
) -> LayerSpec:
    return LayerSpec(op, op, inputs, (output,), weights or {}, 0, parameters=parameters or LayerParameters())


def check(spec: LayerSpec, tolerance: float, shift: float = 0.0, mcpu: str = "") -> None:
    """The first and the last point of the space, which differ most."""
    values = [random.standard_normal(t.shape).astype(np.float32) + np.float32(shift) for t in spec.inputs]
    points = SPACES[spec.op].points(spec, LESSER.get(mcpu, cpu_features()))
    for point in ahead(spec, points[:: max(1, len(points) - 1)], mcpu):
        error, (output,) = worst_error(spec, point, values, mcpu=mcpu)
        assert error < tolerance, (spec.workload, point)
        if spec.outputs[0].block:
            assert untouched_halo(spec.outputs[0], output)


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


@pytest.mark.parametrize("mcpu", sorted(LESSER))
def test_code_for_lesser_instruction_sets(mcpu: str) -> None:
    need(LESSER[mcpu], f"code for {mcpu}")
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

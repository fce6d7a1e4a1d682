"""Convolutions in groups read the blocks that hold their own inputs, whatever the groups' sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from conv_layers import convolution
from onnx_nets import Net, normal, run
from run_kernels import OLDER_CPUS, compile_ahead, halo_is_zero, require_features, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.kernels.conv.conv_weights import input_range
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

LIMIT = {"fp32": 1e-5, "bf16": 2e-2, "dots": 2e-2}


def outputs_agree(path: Path, net: Net, output: str, precision: str, *shape: int) -> list[str]:
    model = net.save(path / "net.onnx", output)
    feeds = {"x": normal(*shape) * 5}
    (found,), operators = run(model, feeds, precision, shape[0])
    (wanted,) = ort.InferenceSession(str(model)).run(None, feeds)
    assert np.abs(found - wanted).max() <= LIMIT[precision] * np.abs(wanted).max()
    return operators


@pytest.mark.sweep(3)
@pytest.mark.parametrize("precision", LIMIT)
@pytest.mark.parametrize(
    ("channels", "groups", "kernel", "stride"),
    [
        pytest.param((128, 128), 32, 3, 1, id="32 of 4 as in ResNeXt"),
        pytest.param((96, 192), 3, 1, 1, id="3 of 32"),
        pytest.param((95, 133), 19, 3, 2, id="19 of 5, that begin within blocks"),
        pytest.param((36, 108), 36, 3, 1, id="a depth multiplier"),
        pytest.param((4, 6), 2, 3, 1, id="of an image"),
        pytest.param((80, 20), 10, 1, 1, id="10 of 8 to 2"),
    ],
)
def test_groups_of_any_size(
    tmp_path: Path, precision: str, channels: tuple[int, int], groups: int, kernel: int, stride: int
) -> None:
    ic, oc = channels
    net = Net(x=[2, ic, 9, 7])
    attributes = {"group": groups, "pads": [kernel // 2] * 4, "strides": [stride] * 2}
    y = net("Conv", "x", normal(oc, ic // groups, kernel, kernel), normal(oc), **attributes)
    again = 7 if oc % 2 else 2
    z = net("Add", net("Conv", y, normal(oc, oc // again, 1, 1), group=again), y)  # a residual behind
    operators = outputs_agree(tmp_path, net, net("Relu", z), precision, 2, ic, 9, 7)
    assert operators.count("conv2d" if precision == "fp32" else "conv2d_bf16") == 2 and "generic" not in operators


@pytest.mark.sweep(3)
@pytest.mark.parametrize("precision", LIMIT)
@pytest.mark.parametrize(
    ("groups", "outputs", "parts"),
    [
        pytest.param(12, 48, 12, id="12 of 4"),
        pytest.param(4, 68, 4, id="4 of 17, that leave lanes empty"),
        pytest.param(3, 108, 3, id="3 of 36"),
        pytest.param(2, 40, 4, id="other groups than those of the shuffle"),
        pytest.param(1, 40, 2, id="a shuffle without groups"),
    ],
)
def test_groups_before_a_shuffle(tmp_path: Path, precision: str, groups: int, outputs: int, parts: int) -> None:
    net = Net(x=[2, 48, 6, 5])
    y = net("Relu", net("Conv", "x", normal(outputs, 48 // groups, 1, 1), normal(outputs), group=groups))
    apart = net("Reshape", y, np.array([2, parts, outputs // parts, 6, 5]))
    mixed = net("Reshape", net("Transpose", apart, perm=[0, 2, 1, 3, 4]), np.array([2, outputs, 6, 5]))
    operators = outputs_agree(tmp_path, net, net("Conv", mixed, normal(8, outputs, 1, 1)), precision, 2, 48, 6, 5)
    assert precision != "fp32" or "generic" not in operators


@pytest.mark.parametrize("mcpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_every_point_on_every_instruction_set(mcpu: str, shuffled: bool) -> None:
    require_features(OLDER_CPUS[mcpu], f"code for {mcpu}")
    spec = convolution((60, 102), (7, 9), 3, stride=1, residual=not shuffled, batch=2)
    weights = {**spec.weights, "weight": spec.weights["weight"][:, :20]}
    spec = replace(spec, weights=weights, parameters=replace(spec.parameters, groups=3, shuffled=shuffled))
    points = SPACES["conv2d"].points(spec, OLDER_CPUS[mcpu])
    assert 1 < len(points) <= 64
    for point in compile_ahead(spec, points[::4], mcpu):
        error, (output,) = run_and_compare(spec, point, [normal(*t.shape) for t in spec.inputs], mcpu=mcpu)
        assert error < 1e-5, point
        assert halo_is_zero(spec.outputs[0], output), point


def test_only_the_inputs_of_a_group_are_read(tmp_path: Path) -> None:
    net = Net(x=[1, 256, 7, 7])
    model = load_model(net.save(tmp_path / "net.onnx", net("Conv", "x", normal(256, 8, 3, 3), group=32)), 1)
    (spec,) = (layer for layer in lower(model, "fp32").layers if layer.op == "conv2d")
    assert input_range(spec, 32).blocks == 2 and spec.flops == 2 * 25 * 256 * 8 * 9
    for features in OLDER_CPUS.values():
        for point in SPACES["conv2d"].points(spec, features):
            weight = SPACES["conv2d"].build(spec, point, features).weights[0]
            assert weight.shape[-2] == 16 * int(point["channels"])  # of 256

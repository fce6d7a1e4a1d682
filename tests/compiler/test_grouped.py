"""Convolutions in groups read the blocks that hold their own inputs, whatever the groups' sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from kernels import LESSER, need
from nets import Net, normal, run

from veltair.compiler.kernels.convolution import reach
from veltair.compiler.kernels.spaces import SPACES
from veltair.compiler.lower import lower
from veltair.compiler.onnx_model import load

LIMIT = {"fp32": 1e-5, "bf16": 2e-2}


def outputs_agree(path: Path, net: Net, output: str, precision: str, *shape: int) -> list[str]:
    if precision == "bf16":
        need(frozenset({"amx_bf16"}), "bfloat16 tiles")
    model = net.save(path / "net.onnx", output)
    feeds = {"x": normal(*shape) * 5}
    (found,), operators = run(model, feeds, precision, shape[0])
    (wanted,) = ort.InferenceSession(str(model)).run(None, feeds)
    assert np.abs(found - wanted).max() <= LIMIT[precision] * np.abs(wanted).max()
    return operators


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
    assert operators.count("conv2d" if precision == "fp32" else "conv2d_amx") == 2 and "generic" not in operators


@pytest.mark.parametrize("precision", LIMIT)
def test_many_groups_before_a_shuffle(tmp_path: Path, precision: str) -> None:
    net = Net(x=[1, 48, 6, 5])
    y = net("Conv", "x", normal(48, 4, 1, 1), group=12)
    apart = net("Transpose", net("Reshape", y, np.array([1, 12, 4, 6, 5])), perm=[0, 2, 1, 3, 4])
    y = net("Conv", net("Reshape", apart, np.array([1, 48, 6, 5])), normal(8, 48, 1, 1))
    outputs_agree(tmp_path, net, y, precision, 1, 48, 6, 5)


def test_only_the_inputs_of_a_group_are_read(tmp_path: Path) -> None:
    net = Net(x=[1, 256, 7, 7])
    model = load(net.save(tmp_path / "net.onnx", net("Conv", "x", normal(256, 8, 3, 3), group=32)), 1)
    (spec,) = (layer for layer in lower(model, "fp32").layers if layer.op == "conv2d")
    blocks = reach(spec, 32)[1]
    assert blocks == 2 and spec.flops == 2 * 25 * 256 * 8 * 9
    for features in LESSER.values():
        assert all(point["algorithm"] == "direct" for point in SPACES["conv2d"].points(spec, features))

"""Feature maps that are resized between convolutions stay in blocks of channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_nets import Net, agree, normal

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

CHANNELS, SIZE = 32, (6, 9)
MODES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


def convolved(net: Net, x: str) -> str:
    return net("Conv", x, normal(CHANNELS, CHANNELS, 3, 3), normal(CHANNELS), pads=[1] * 4)


def to_size(net: Net, x: str, *size: int, **attributes: Any) -> str:
    return net("Resize", x, "", "", np.array([2, CHANNELS, *size]), mode="linear", **attributes)


def layers(net: Net, y: str, tmp_path: Path, precision: str = "fp32") -> list[str]:
    return agree(tmp_path, (convolved(net, y),), net, precision, 2, CHANNELS, *SIZE)


IN_BLOCKS = ["to_blocked", "conv2d", "resize", "conv2d", "to_plain"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(12, 18), (7, 25), (3, 4), (1, 1), (6, 20)])
def test_every_way_to_place_pixels(tmp_path: Path, mode: str, size: tuple[int, int]) -> None:
    net = Net(x=[2, CHANNELS, *SIZE])
    y = to_size(net, convolved(net, "x"), *size, coordinate_transformation_mode=mode)
    assert layers(net, y, tmp_path) == IN_BLOCKS


@pytest.mark.parametrize("scales", [(2.0, 2.0), (1.5, 2.3), (0.4, 1.0)])
def test_by_scales(tmp_path: Path, scales: tuple[float, float]) -> None:
    """A scale that gives no whole number of pixels still says where they lie."""
    net = Net(x=["n", CHANNELS, *SIZE])
    y = net("Resize", convolved(net, "x"), "", np.array([1, 1, *scales], np.float32), mode="linear")
    assert layers(net, y, tmp_path) == IN_BLOCKS


@pytest.mark.parametrize("precision", ["bf16", "dots"])
def test_in_bfloat16(tmp_path: Path, precision: str) -> None:
    net = Net(x=[2, CHANNELS, *SIZE])
    found = layers(net, to_size(net, convolved(net, "x"), 12, 18), tmp_path, precision)
    assert found == ["to_blocked", "conv2d_bf16", "resize", "conv2d_bf16", "to_plain"]


def test_a_sum_and_an_activation_behind_it_are_part_of_it(tmp_path: Path) -> None:
    """As in a pyramid of features."""
    net = Net(x=[2, CHANNELS, *SIZE])
    first = convolved(net, "x")
    small = net("Conv", first, normal(CHANNELS, CHANNELS, 3, 3), strides=[2, 2], pads=[1] * 4)
    y = net("Relu", net("Add", first, to_size(net, small, *SIZE)))
    assert layers(net, y, tmp_path) == ["to_blocked", "conv2d", "conv2d", "resize", "conv2d", "to_plain"]


@pytest.mark.parametrize("attributes", [{"mode": "cubic"}, {"mode": "linear", "antialias": 1}])
def test_what_is_more_than_two_taps(tmp_path: Path, attributes: dict[str, Any]) -> None:
    net = Net(x=[2, CHANNELS, *SIZE])
    y = net("Resize", convolved(net, "x"), "", "", np.array([2, CHANNELS, 3, 4]), **attributes)
    path = net.save(tmp_path / "net.onnx", convolved(net, y))
    proto = onnx.load(path)
    proto.opset_import[0].version = 18
    onnx.save(proto, path)
    assert "resize" not in {layer.op for layer in lower(load_model(path), "fp32").layers}


def test_what_is_no_layer_leaves_nothing_behind(tmp_path: Path) -> None:
    """An image that comes in rows goes to blocks once, behind what TVM makes of the node."""
    net = Net(x=[2, CHANNELS, *SIZE])
    y = net("Resize", "x", "", "", np.array([2, CHANNELS, 3, 4]), mode="linear", antialias=1)
    path = net.save(tmp_path / "net.onnx", convolved(net, y))
    proto = onnx.load(path)
    proto.opset_import[0].version = 18
    onnx.save(proto, path)
    operators = [layer.op for layer in lower(load_model(path), "fp32").layers]
    assert operators.count("to_blocked") == 1 and "resize" not in operators

"""Group and instance normalisation between convolutions stay in blocks of channels, however they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx_nets import Net, agree, normal
from run_kernels import run_graph

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

PRECISIONS = ["fp32", "bf16", "dots"]
CHANNELS, SIZE = 32, (9, 7)


def convolved(net: Net, x: str) -> str:
    return net("Conv", x, normal(CHANNELS, CHANNELS, 3, 3), normal(CHANNELS), pads=[1] * 4)


def instance_norm(net: Net, x: str) -> str:
    return net("InstanceNormalization", x, normal(CHANNELS), normal(CHANNELS), epsilon=1e-3)


def group_norm(net: Net, x: str, groups: int = 4) -> str:
    """As PyTorch's exporter writes it: an instance normalisation of groups, then factors and summands of channels."""
    rows = net("Reshape", x, np.array([0, groups, -1]))
    ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    normalised = net("InstanceNormalization", rows, ones, zeros)
    back = net("Reshape", normalised, np.array([-1, CHANNELS, *SIZE]))
    return net("Add", net("Mul", back, normal(CHANNELS, 1, 1)), normal(CHANNELS, 1, 1))


def layers(net: Net, y: str, tmp_path: Path, precision: str) -> list[str]:
    return agree(tmp_path, (convolved(net, y),), net, precision, 3, CHANNELS, *SIZE)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("norm", [instance_norm, group_norm])
def test_with_an_activation_between_convolutions(tmp_path: Path, norm: Any, precision: str) -> None:
    net = Net(x=["n", CHANNELS, *SIZE])
    found = layers(net, net("Relu", norm(net, convolved(net, "x"))), tmp_path, precision)
    product = "conv2d" if precision == "fp32" else "conv2d_bf16"
    assert found == ["to_blocked", product, "group_norm", product, "to_plain"]


def test_gated(tmp_path: Path) -> None:
    net = Net(x=["n", CHANNELS, *SIZE])
    y = group_norm(net, convolved(net, "x"))
    found = layers(net, net("Mul", y, net("Sigmoid", y)), tmp_path, "fp32")
    assert found == ["to_blocked", "conv2d", "group_norm", "conv2d", "to_plain"]


def test_a_sum_behind_it_is_part_of_it(tmp_path: Path) -> None:
    net = Net(x=["n", CHANNELS, *SIZE])
    first = convolved(net, "x")
    found = layers(net, net("Add", first, instance_norm(net, convolved(net, first))), tmp_path, "fp32")
    assert found == ["to_blocked", "conv2d", "conv2d", "group_norm", "conv2d", "to_plain"]


@pytest.mark.parametrize(("opset", "count"), [(18, 4), (21, CHANNELS)])
def test_the_operator_of_newer_sets(tmp_path: Path, opset: int, count: int) -> None:
    """It has factors of groups before set 21, of channels since."""
    net = Net(x=["n", CHANNELS, *SIZE])
    factors = normal(count), normal(count)
    y = net("GroupNormalization", convolved(net, "x"), *factors, num_groups=4, epsilon=1e-2)
    path = net.save(tmp_path / "net.onnx", convolved(net, net("Relu", y)))
    proto = onnx.load(path)
    proto.opset_import[0].version = opset
    onnx.save(proto, path)
    x = np.random.default_rng(0).standard_normal((2, CHANNELS, *SIZE)).astype(np.float32)
    graph = lower(load_model(path, 4), "fp32")
    assert [layer.op for layer in graph.layers] == ["to_blocked", "conv2d", "group_norm", "conv2d", "to_plain"]
    (found,) = run_graph(graph, {"x": x}, 2)
    (wanted,) = ort.InferenceSession(str(path)).run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_padding_that_repeats_pixels_stays_in_blocks(tmp_path: Path, mode: str) -> None:
    net = Net(x=["n", CHANNELS, *SIZE])
    padded = net("Pad", convolved(net, "x"), np.array([0, 0, 1, 2, 0, 0, 3, 1]), mode=mode)
    found = layers(net, padded, tmp_path, "fp32")
    assert found == ["to_blocked", "conv2d", "pick_pixels", "conv2d", "to_plain"]


def test_padding_with_a_number_is_no_pixel(tmp_path: Path) -> None:
    net = Net(x=["n", CHANNELS, *SIZE])
    padded = net("Pad", convolved(net, "x"), np.array([0, 0, 1, 2, 0, 0, 3, 1]), np.float32(7))
    assert "pick_pixels" not in layers(net, padded, tmp_path, "fp32")


def other_axis(net: Net, x: str) -> str:
    return net("LayerNormalization", x, normal(SIZE[1]), normal(SIZE[1]), axis=3)


def other_factors(net: Net, x: str) -> str:
    """Of every pixel."""
    return net("LayerNormalization", x, normal(*SIZE), normal(*SIZE), axis=2)


def of_columns(net: Net, x: str) -> str:
    """A summand of each column is none of a channel."""
    return net("Add", instance_norm(net, x), normal(SIZE[1]))


@pytest.mark.parametrize("norm", [other_axis, other_factors, of_columns])
def test_what_is_another_sum(tmp_path: Path, norm: Any) -> None:
    net = Net(x=["n", CHANNELS, *SIZE])
    found = layers(net, norm(net, convolved(net, "x")), tmp_path, "fp32")
    assert ("group_norm" in found) == (norm is of_columns)

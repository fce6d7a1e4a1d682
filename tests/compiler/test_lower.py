"""Whole small models, lowered, planned into an arena and run: equal to ONNX Runtime on the original file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnx_nets import WAYS, Net, normal, run

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError


def residual_net(net: Net, channels: int = 24) -> tuple[str, ...]:
    x = net("Relu", net("Conv", "x", normal(channels, 3, 5, 5), normal(channels), strides=[2, 2], pads=[2, 2, 2, 2]))
    y = net("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    z = net("Conv", y, normal(channels, channels, 3, 3), pads=[1, 1, 1, 1])
    z = net("Relu", net("Add", net("Conv", z, normal(channels, channels, 1, 1)), y))
    z = net(
        "Clip",
        net("Conv", z, normal(channels, 1, 3, 3), pads=[1, 1, 1, 1], group=channels),
        np.float32(0),
        np.float32(6),
    )
    z = net("Flatten", net("GlobalAveragePool", z))
    return (net("Softmax", net("Gemm", z, normal(10, channels), normal(10), transB=1)),)


def inception_net(net: Net) -> tuple[str, ...]:
    x = net("Relu", net("Conv", "x", normal(32, 3, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]))
    parts = [net("Relu", net("Conv", x, normal(32, 32, 1, 1))), net("Conv", x, normal(64, 32, 3, 3), pads=[1, 1, 1, 1])]
    joined = net("Concat", *parts, net("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), axis=1)
    scaled = net("BatchNormalization", joined, *(abs(normal(128)) + 0.5 for _ in range(4)))
    grouped = net("Conv", net("LRN", net("Relu", scaled), size=5), normal(16, 32, 1, 1), group=4)
    return net("GlobalAveragePool", grouped), net("Sum", grouped, grouped)


def odd_net(net: Net) -> tuple[str, ...]:
    """Nothing that has a kernel of its own but two; views, transposes, reductions, an input handed through."""
    t = net("Transpose", "x", perm=[0, 2, 3, 1])
    rows = net("Reshape", t, np.array([0, -1, 3]))
    product = net("Add", net("MatMul", rows, normal(3, 7)), normal(7))
    picked = net("Gather", product, np.array([0, -1, 2]), axis=1)
    return (
        net("Tanh", net("ReduceMean", picked, axes=[2], keepdims=0)),
        net("Identity", "x"),
        net("Mul", product, product),
    )


NETS: dict[str, Callable[[Net], tuple[str, ...]]] = {
    "residual": residual_net,
    "inception": inception_net,
    "odd": odd_net,
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("precision", WAYS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NETS)
def test_equal_to_onnx_runtime(tmp_path: Path, name: str, batch: int, precision: str) -> None:
    net = Net(x=["n" if batch > 1 else 1, 3, 21, 26])
    path = net.save(tmp_path / "net.onnx", *NETS[name](net))
    feeds = {"x": normal(batch, 3, 21, 26) * 10}
    outputs, operators = run(path, feeds, precision, batch)
    expected = ort.InferenceSession(str(path)).run(None, feeds)
    for found, wanted in zip(outputs, expected, strict=True):
        assert np.abs(found - wanted).max() <= (1e-5 if precision == "fp32" else 3e-2) * np.abs(wanted).max()
    if name == "residual":
        assert "elementwise" not in operators  # sum and activation ride on the convolution


def test_operators_that_nobody_can_take_are_named(tmp_path: Path) -> None:
    net = Net(x=[1, 3, 4, 4])
    net("NonZero", "x")
    shape = net("Unique", "x")
    with pytest.raises(ModelError, match=r"Unique|NonZero"):
        lower(load_model(net.save(tmp_path / "net.onnx", shape), fallback=False), "fp32")


def test_an_operator_behind_others_is_named_alone(tmp_path: Path) -> None:
    net = Net(x=[2, 3, 3])
    y = "x"
    for _ in range(12):
        y = net("Sin", y)
    y = net("Exp", net("Det", y))
    with pytest.raises(ModelError, match=r"^no way to compile Det \('[^']*'\): ") as caught:
        lower(load_model(net.save(tmp_path / "net.onnx", y)), "fp32", fallback=False)
    assert "Sin" not in str(caught.value)


def test_what_breaks_off_within_tvm_is_named(tmp_path: Path) -> None:
    net = Net(x=[4, 3])
    whole = net("Cast", "x", to=TensorProto.INT32)
    y = net("Cast", net("Pow", whole, whole), to=TensorProto.FLOAT)
    with pytest.raises(ModelError, match=r"no way to compile.*Pow"):
        lower(load_model(net.save(tmp_path / "net.onnx", y)), "fp32", fallback=False)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_resize_to_sizes_that_say_the_batch(tmp_path: Path, batch: int) -> None:
    net = Net(x=["n", 3, 4, 5])
    sizes = net("Concat", net("Slice", net("Shape", "x"), np.array([0]), np.array([2])), np.array([8, 15]), axis=0)
    y = net("Resize", net("Sigmoid", "x"), "", "", sizes, mode="linear", coordinate_transformation_mode="asymmetric")
    path = net.save(tmp_path / "net.onnx", y)
    feeds = {"x": normal(batch, 3, 4, 5)}
    outputs, _ = run(path, feeds, "fp32", batch)
    np.testing.assert_allclose(outputs[0], ort.InferenceSession(str(path)).run(None, feeds)[0], rtol=1e-5, atol=1e-6)

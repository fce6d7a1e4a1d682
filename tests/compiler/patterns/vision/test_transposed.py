"""Transposed convolutions, and pixel shuffles, are convolutions whose channels become pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_nets import Net, agree, normal
from quantised_models import save

from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.patterns.vision.transposed import PhasedAxis
from veltair.compiler.pipeline import lower


@given(
    st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.integers(0, 6), st.integers(1, 5), st.integers(-3, 3)
)
def test_an_axis_gives_what_taps_add_up_to(
    taps: int, stride: int, dilation: int, pad: int, extent: int, more: int
) -> None:
    result = (extent - 1) * stride + (taps - 1) * dilation + 1 - pad + more
    assume(result >= 1)
    rng = np.random.default_rng(0)
    x, weight = rng.integers(1, 9, extent), rng.integers(1, 9, taps)
    expected = np.zeros(result, np.int64)
    for i, k in np.ndindex(extent, taps):
        place = i * stride + k * dilation - pad
        if 0 <= place < result:
            expected[place] += x[i] * weight[k]

    axis = PhasedAxis.of(taps, stride, dilation, pad, extent, result)

    filters = np.zeros((axis.stride, axis.taps), np.int64)
    for k in range(taps):
        filters[axis.phase[k], axis.tap[k]] = weight[k]
    padded = np.pad(x, axis.pads)
    windows = np.lib.stride_tricks.sliding_window_view(padded, axis.taps)
    found = (windows @ filters.T).reshape(-1)
    assert min(axis.pads) >= 0
    assert len(windows) == axis.outputs
    np.testing.assert_array_equal(found[:result], expected)


# Channels, size, filter, stride, padding and what the net has beside.
NETS: list[Any] = [
    pytest.param((32, 32), (5, 7), 2, 2, 0, {}, id="no tap twice"),
    pytest.param((32, 64), (5, 7), 4, 2, 1, {}, id="four taps"),
    pytest.param((32, 32), (5, 7), 3, 2, 1, {"output_padding": [1, 1]}, id="a row more"),
    pytest.param((32, 32), (5, 7), 3, 2, 1, {}, id="a row is cut away"),
    pytest.param((32, 32), (6, 3), 3, 2, 2, {"dilations": [2, 2]}, id="dilated"),
    pytest.param((32, 32), (6, 6), 5, 2, 4, {"output_padding": [1, 1]}, id="much is cut away"),
    pytest.param((32, 32), (4, 6), 3, 2, 0, {"auto_pad": "SAME_UPPER"}, id="as many times as the stride"),
    pytest.param((32, 32), (4, 6), 3, 2, 0, {"auto_pad": "SAME_LOWER"}, id="the same, cut before"),
    pytest.param((32, 32), (4, 4), 4, 2, 0, {"output_shape": [9, 8]}, id="of a stated shape"),
    pytest.param((20, 3), (5, 7), 4, 2, 1, {}, id="channels that fill no block"),
    pytest.param((24, 48), (6, 6), 3, 2, 1, {"group": 2}, id="groups"),
    pytest.param((16, 16), (6, 6), 4, 4, 0, {"group": 16}, id="a channel at a time"),
    pytest.param((21, 21), (3, 3), 16, 8, 4, {}, id="far apart"),
    pytest.param((32, 32), (4, 4), 5, 1, 2, {}, id="no stride"),
    pytest.param((32, 32), (1, 1), 4, 1, 0, {}, id="from a pixel"),
]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "dots"])
@pytest.mark.parametrize(("channels", "size", "kernel", "stride", "pad", "more"), NETS)
def test_equal_to_onnx_runtime(
    tmp_path: Path,
    channels: tuple[int, int],
    size: tuple[int, int],
    kernel: int,
    stride: int,
    pad: int,
    more: dict[str, Any],
    precision: str,
) -> None:
    net = Net(x=["n", channels[0], *size])
    weight, bias = normal(channels[0], channels[1] // more.get("group", 1), kernel, kernel), normal(channels[1])
    pads = {} if {"auto_pad", "output_shape"} & more.keys() else {"pads": [pad] * 4}
    y = net("Relu", net("ConvTranspose", "x", weight, bias, strides=[stride] * 2, **pads, **more))
    product = "conv2d" if precision == "fp32" else "conv2d_bf16"
    operators = agree(tmp_path, (y,), net, precision, 3, channels[0], *size)
    assert operators[:2] == ["to_blocked", product]
    if stride > 1 and channels[1] % 32 == 0:
        assert operators[2:] == ["depth_to_space", "to_plain"]


def test_from_a_pixel_each_output_reads_one_tap(tmp_path: Path) -> None:
    net = Net(x=["n", 20, 1, 1])
    model = net.save(tmp_path / "net.onnx", net("ConvTranspose", "x", normal(20, 32, 4, 4)))
    product, move, _ = [layer for layer in lower(load_model(model, 3), "fp32").layers if layer.op != "to_blocked"]
    assert product.parameters_as(Conv2dParameters).kernel == (1, 1)
    assert move.op == "depth_to_space"


def test_a_batch_norm_and_activations_are_part_of_it(tmp_path: Path) -> None:
    net = Net(x=["n", 16, 5, 5])
    y = net("ConvTranspose", "x", normal(16, 32, 4, 4), strides=[2, 2], pads=[1] * 4)
    norm = normal(32), normal(32), normal(32), np.abs(normal(32)) + np.float32(0.1)
    y = net("LeakyRelu", net("BatchNormalization", y, *norm), alpha=0.2)
    y = net("Conv", y, normal(20, 32, 3, 3), pads=[1] * 4)
    operators = agree(tmp_path, (y,), net, "fp32", 3, 16, 5, 5)
    assert operators == ["to_blocked", "conv2d", "depth_to_space", "conv2d", "to_plain"]


@pytest.mark.parametrize("rank", [1, 3])
def test_signals_and_volumes(tmp_path: Path, rank: int) -> None:
    net, size = Net(x=["n", 20, *[6, 5, 4][:rank]]), [6, 5, 4][:rank]
    y = net("ConvTranspose", "x", normal(20, 24, *[4] * rank), strides=[2] * rank, pads=[1] * 2 * rank)
    operators = agree(tmp_path, (net("Relu", y),), net, "fp32", 2, 20, *size)
    assert "conv2d" in operators


def test_constants_of_two_rewritings_do_not_replace_each_other(tmp_path: Path) -> None:
    """A transposed convolution becomes one of volumes, which becomes one of images and a slice."""
    net = Net(x=["n", 7, 6, 5, 2])
    geometry = {"strides": [1, 2, 1], "pads": [0, 1, 0, 0, 1, 0]}
    agree(tmp_path, (net("ConvTranspose", "x", normal(7, 3, 2, 4, 3), **geometry),), net, "fp32", 2, 7, 6, 5, 2)


@pytest.mark.parametrize("mode", ["CRD", "DCR"])
def test_pixels_are_shuffled_in_blocks(tmp_path: Path, mode: str) -> None:
    net = Net(x=["n", 8, 6, 5])
    y = net("DepthToSpace", net("Conv", "x", normal(128, 8, 3, 3), normal(128), pads=[1] * 4), blocksize=2, mode=mode)
    y = net("Conv", y, normal(16, 32, 3, 3), pads=[1] * 4)
    assert agree(tmp_path, (y,), net, "bf16", 3, 8, 6, 5) == [
        *("to_blocked", "conv2d_bf16", "depth_to_space", "conv2d_bf16", "to_plain")
    ]


def test_what_others_read_stays(tmp_path: Path) -> None:
    """The result before its activation is an output, too."""
    net = Net(x=["n", 16, 5, 5])
    y = net("ConvTranspose", "x", normal(16, 32, 2, 2), strides=[2, 2])
    agree(tmp_path, (net("Relu", y), y), net, "fp32", 2, 16, 5, 5)


def test_computed_filters_are_left_to_others(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Tanh", ["w"], ["filter"]),
        helper.make_node("ReduceMean", ["x"], ["factor"]),
        helper.make_node("Mul", ["filter", "factor"], ["computed"]),
        helper.make_node("ConvTranspose", ["x", "computed"], ["y"], strides=[2, 2]),
    ]
    path = save(
        tmp_path / "net.onnx", nodes, {"w": normal(4, 3, 2, 2)}, (TensorProto.FLOAT, [1, 4, 5, 5]), [1, 3, 10, 10]
    )
    assert "conv2d" not in [layer.op for layer in lower(load_model(path), "fp32").layers]

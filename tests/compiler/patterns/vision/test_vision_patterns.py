"""Vision networks lose no time to copies: what is joined, activated or pooled stays in blocks, and is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nets import Net, agree, normal
from run_kernels import run_graph

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

PRECISIONS = ["fp32", "bf16", "dots"]
BATCHES = [(1, "fp32"), (1, "bf16"), (2, "dots"), (3, "fp32")]


def dense_block(net: Net) -> tuple[str, ...]:
    """Each layer reads all before it, and a halo asked of one slice is a halo of the whole."""
    x = net("Conv", "x", normal(64, 3, 3, 3), pads=[1, 1, 1, 1])
    for channels in (64, 96):
        grown = net("Conv", net("Relu", x), normal(32, channels, 3, 3), pads=[1, 1, 1, 1])
        x = net("Concat", x, grown, axis=1)
    return net("GlobalAveragePool", net("Conv", x, normal(16, 128, 1, 1))), net("Concat", x, x, axis=1)


def branches(net: Net) -> tuple[str, ...]:
    """As in an inception module; one branch is read beside the concatenation as well."""
    x = net("Relu", net("Conv", "x", normal(32, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))
    first = net("Relu", net("Conv", x, normal(32, 32, 1, 1)))
    parts = [first, net("Conv", first, normal(64, 32, 3, 3), pads=[1, 1, 1, 1]), net("Conv", x, normal(40, 32, 1, 1))]
    return (net("Conv", net("Concat", *parts, axis=1), normal(20, 136, 3, 3), pads=[1, 1, 1, 1]),)


def ragged(net: Net) -> tuple[str, ...]:
    """Channels that fill no blocks."""
    x = net("Relu", net("Conv", "x", normal(32, 3, 3, 3)))
    parts = [net("Conv", x, normal(c, 32, 1, 1)) for c in (32, 7, 24, 33, 70)]
    return (net("Conv", net("Concat", *parts, x, axis=1), normal(20, 198, 1, 1)),)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("batch", "precision"), BATCHES)
@pytest.mark.parametrize(("make", "copies"), [(dense_block, 1), (branches, 0), (ragged, 2)])
def test_concatenation_is_made_in_place(
    tmp_path: Path, make: Callable[[Net], tuple[str, ...]], copies: int, batch: int, precision: str
) -> None:
    net = Net(x=[batch, 3, 13, 10])
    operators = agree(tmp_path, make(net), net, precision, batch, 3, 13, 10)
    if batch == 1:
        assert operators.count("concat") == copies


def activations(net: Net) -> tuple[str, ...]:
    """Every activation behind a convolution, as exporters write it, and once on its own."""
    x = net("Conv", "x", normal(36, 3, 3, 3), normal(36))
    outputs = []
    with_alpha = {"LeakyRelu": {"alpha": 0.1}, "Elu": {"alpha": 0.7}, "HardSigmoid": {"alpha": 0.3}}
    for op in ("Relu", "LeakyRelu", "Elu", "HardSigmoid", "Sigmoid", "Tanh", "HardSwish"):
        attributes = with_alpha.get(op, {})
        outputs.append(net(op, net("Conv", x, normal(20, 36, 1, 1), normal(20)), **attributes))
    outputs.append(net("PRelu", net("Conv", x, normal(20, 36, 1, 1)), np.full((20, 1, 1), 0.2, np.float32)))
    outputs.append(net("Clip", net("Conv", x, normal(20, 36, 1, 1)), np.float32(-0.5), np.float32(0.5)))
    for gate in ("Sigmoid", "HardSigmoid"):
        y = net("Conv", x, normal(20, 36, 1, 1))
        outputs.append(net("Mul", y, net(gate, y)))
    y = net("Conv", x, normal(20, 36, 1, 1))
    erf = net("Add", net("Erf", net("Div", y, np.float32(2**0.5))), np.float32(1))
    outputs.append(net("Mul", net("Mul", y, erf), np.float32(0.5)))
    total = outputs[0]
    for y in outputs[1:]:
        total = net("Add", total, y)
    scaled = net("Sub", net("Mul", total, normal(20, 1, 1)), normal(1, 20, 1, 1))
    return (net("Mul", scaled, net("Sigmoid", scaled)),)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_activations_ride_on_their_anchors(tmp_path: Path, precision: str) -> None:
    net = Net(x=[1, 3, 9, 7])
    operators = agree(tmp_path, activations(net), net, precision, 1, 3, 9, 7)
    assert set(operators) <= {"to_blocked", "conv2d", "conv2d_bf16", "elementwise", "to_plain"}


def excited(net: Net) -> tuple[str, ...]:
    """As in EfficientNet, and with hard gates and PyTorch's other spelling of the mean as in MobileNet-V3."""
    x = "x"
    for channels, width, hidden, gate in ((3, 40, 7, "Sigmoid"), (40, 33, 20, "HardSigmoid")):
        x = net("Conv", x, normal(width, channels, 3, 3), normal(width))
        mean = net("GlobalAveragePool", x) if gate == "Sigmoid" else net("ReduceMean", x, axes=[-1, -2])
        squeezed = net("Conv", mean, normal(hidden, width, 1, 1), normal(hidden))
        squeezed = net("Mul", squeezed, net("Sigmoid", squeezed)) if gate == "Sigmoid" else net("Relu", squeezed)
        excited = net(gate, net("Conv", squeezed, normal(width, hidden, 1, 1), normal(width)))
        x = net("Mul", excited, x)
        x = net("HardSwish", x) if gate == "HardSigmoid" else x
    return (net("Conv", x, normal(10, 33, 1, 1)),)


@pytest.mark.parametrize(("batch", "precision"), BATCHES)
def test_squeeze_and_excite_is_one_layer(tmp_path: Path, batch: int, precision: str) -> None:
    net = Net(x=["n" if batch > 1 else 1, 3, 12, 15])
    operators = agree(tmp_path, excited(net), net, precision, batch, 3, 12, 15)
    assert operators.count("squeeze_excite") == 2
    assert set(operators) <= {"to_blocked", "conv2d", "conv2d_bf16", "squeeze_excite", "to_plain"}


@pytest.mark.parametrize("make", [dense_block, branches, ragged])
def test_slices_lie_where_the_graph_says(tmp_path: Path, make: Callable[[Net], tuple[str, ...]]) -> None:
    """`run_graph`, which tests of whole networks use, places them without an arena."""
    net = Net(x=[1, 3, 13, 10])
    model = net.save(tmp_path / "net.onnx", *make(net))
    feeds = {"x": normal(1, 3, 13, 10) * 10}
    graph = lower(load_model(model), "fp32")
    assert graph.slices
    wanted = ort.InferenceSession(str(model)).run(None, feeds)
    for ours, theirs in zip(run_graph(graph, feeds, 1), wanted, strict=True):
        assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def detector(net: Net) -> tuple[str, ...]:
    """Heads as PyTorch and TensorFlow export them, on features one of which is scaled to length one."""
    x = net("Relu", net("Conv", "x", normal(40, 3, 3, 3), pads=[1, 1, 1, 1]))
    length = net("Clip", net("ReduceL2", x, axes=[1], keepdims=1), np.float32(1e-12))
    unit = net("Div", x, net("Expand", length, np.array([1, 40, 9, 14])))
    features = [net("Mul", normal(1, 40, 1, 1), unit), net("Conv", x, normal(40, 40, 3, 3), strides=[2, 2])]
    parts: dict[int, list[str]] = {4: [], 11: []}
    for y, (h, w), anchors in zip(features, [(9, 14), (4, 6)], (3, 5), strict=True):
        for width in parts:
            head = net("Conv", y, normal(anchors * width, 40, 3, 3), pads=[1, 1, 1, 1])
            if anchors == 3:
                apart = net("Reshape", head, np.array([1, anchors, width, h, w]))
                last = net("Transpose", apart, perm=[0, 3, 4, 1, 2])
            else:
                last = net("Transpose", head, perm=[0, 2, 3, 1])
            parts[width].append(net("Reshape", last, np.array([1, -1, width])))
    return net("Concat", *parts[4], axis=1), net("Relu", net("Concat", *parts[11], axis=1))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_detection_heads_write_their_rows(tmp_path: Path, precision: str) -> None:
    net = Net(x=[1, 3, 9, 14])
    operators = agree(tmp_path, detector(net), net, precision, 1, 3, 9, 14)
    assert operators.count("channels_last") == 4
    assert operators.count("l2_normalize") == 1
    assert not {"to_plain", "concat", "elementwise"} & set(operators)


def shuffled(net: Net) -> tuple[str, ...]:
    """A unit of ShuffleNet, and a mean as PyTorch's `x.mean((2, 3))` is exported."""
    x = net("Conv", "x", normal(24, 3, 3, 3))
    y = net("Relu", net("Conv", x, normal(24, 8, 1, 1), normal(24), group=3))
    y = net("Reshape", y, np.array([0, 3, 8, 7, 9]))
    y = net("Reshape", net("Transpose", y, perm=[0, 2, 1, 3, 4]), np.array([0, 24, 7, 9]))
    y = net("Conv", y, normal(24, 1, 3, 3), pads=[1, 1, 1, 1], group=24)
    return (net("ReduceMean", net("Add", x, net("Conv", y, normal(24, 24, 1, 1))), axes=[-1, 2], keepdims=0),)


@pytest.mark.parametrize(("batch", "precision"), BATCHES)
def test_a_shuffle_is_a_permutation_of_weights(tmp_path: Path, batch: int, precision: str) -> None:
    net = Net(x=[batch, 3, 9, 11])
    operators = agree(tmp_path, shuffled(net), net, precision, batch, 3, 9, 11)
    assert set(operators) <= {"to_blocked", "conv2d", "conv2d_bf16", "depthwise_conv2d", "global_average_pool"}


def normalised(net: Net) -> tuple[str, ...]:
    """Scales and shifts behind a value that others read too, as Caffe's nets have them."""
    x = net("Conv", "x", normal(20, 3, 3, 3))
    y = net("BatchNormalization", x, *(abs(normal(20)) + 0.5 for _ in range(4)))
    y = net("Relu", net("Add", net("Mul", y, normal(20, 1, 1)), normal(1, 20, 1, 1)))
    return (net("Add", x, y),)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_scales_in_a_row_are_one(tmp_path: Path, precision: str) -> None:
    net = Net(x=[1, 3, 9, 11])
    operators = agree(tmp_path, normalised(net), net, precision, 1, 3, 9, 11)
    assert operators.count("elementwise") == 2


@pytest.mark.parametrize(
    ("size", "ceil", "slope", "fused"),
    [(262, 0, 0.1, True), (261, 1, 0.1, True), (20, 0, 0.1, False), (262, 0, -0.1, False)],
)
def test_large_convolutions_pool_their_sums(tmp_path: Path, size: int, ceil: int, slope: float, fused: bool) -> None:
    """In bfloat16, where the activation keeps the order of values."""
    net = Net(x=[1, 3, size, size])
    x = net("LeakyRelu", net("Conv", "x", normal(20, 3, 3, 3), normal(20), pads=[1, 1, 1, 1]), alpha=slope)
    x = net("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=ceil)
    x = net("Conv", x, normal(8, 20, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    operators = agree(tmp_path, (x,), net, "bf16", 1, 3, size, size)
    assert ("pool2d" not in operators) == fused

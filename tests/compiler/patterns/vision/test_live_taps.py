"""Taps that read padding alone are left out of filters, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from onnx_nets import Net, agree, normal
from quantised_models import quantise, save
from run_kernels import run_graph

from veltair.compiler.graph.parameters.quantised import QuantisedProductParameters
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.patterns.vision.live_taps import live_taps
from veltair.compiler.pipeline import lower
from veltair.profiles.runtime.onnx_layers import exact_session

Pair = tuple[int, int]
pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))


def convolved(x: NDArray[Any], weight: NDArray[Any], strides: Pair, dilations: Pair, pads: Any) -> NDArray[Any]:
    """Of one image of one channel and one filter, tap by tap."""
    padded = np.pad(x, ((pads[0], pads[2]), (pads[1], pads[3])))
    reach = [(size - 1) * step + 1 for size, step in zip(weight.shape[2:], dilations, strict=True)]
    extents = [(n - r) // s + 1 for n, r, s in zip(padded.shape, reach, strides, strict=True)]
    out = np.zeros(extents)
    for i, j in np.ndindex(*weight.shape[2:]):
        top, left = i * dilations[0], j * dilations[1]
        rows = slice(top, top + (extents[0] - 1) * strides[0] + 1, strides[0])
        out += weight[0, 0, i, j] * padded[rows, left : left + (extents[1] - 1) * strides[1] + 1 : strides[1]]
    return out


@given(
    pairs,
    pairs,
    pairs,
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(*[st.integers(0, 12)] * 4),
)
def test_the_outputs_stay(extents: Pair, kernel: Pair, strides: Pair, dilations: Pair, pads: Any) -> None:
    sizes = [n + pads[i] + pads[2 + i] - (kernel[i] - 1) * dilations[i] for i, n in enumerate(extents)]
    assume(min(sizes) >= 1)
    # As `padding` gives it: what the last output reads, and no more.
    outputs = [(size - 1) // stride + 1 for size, stride in zip(sizes, strides, strict=True)]
    needs = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(outputs, strides, kernel, dilations, strict=True)]
    after = [max(need - n - pads[i], 0) for i, (need, n) in enumerate(zip(needs, extents, strict=True))]
    given_pads = (pads[0], pads[1], after[0], after[1])
    rng = np.random.default_rng(0)
    x, weight = rng.integers(1, 9, extents), rng.integers(1, 9, (1, 1, *kernel))

    kept, steps, left = live_taps(weight, extents, outputs, strides, dilations, given_pads)

    expected = convolved(x, weight, strides, dilations, given_pads)[: outputs[0], : outputs[1]]
    found = convolved(x, kept, strides, steps, left)[: outputs[0], : outputs[1]]
    np.testing.assert_array_equal(found, expected)
    assert min(left) >= 0


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "pad", "kept"),
    [
        (6, 3, 1, 12, 12, 1),  # the middle of a dilated filter
        (1, 3, 1, 1, 1, 1),  # a detector's last pixel
        (1, 3, 2, 1, 1, 1),
        (13, 3, 1, 12, 12, 3),  # the outer ones read one pixel each
        (4, 7, 1, 1, 3, 7),
        (3, 7, 1, 1, 3, 5),
        (4, 5, 1, 2, 4, 3),
        (6, 3, 1, 12, 24, 3),  # of more outputs than inputs each tap reads some
    ],
)
def test_what_is_left(size: int, kernel: int, stride: int, dilation: int, pad: int, kept: int) -> None:
    outputs = [(size + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1] * 2
    weight = np.ones((1, 1, kernel, kernel))
    found, _, _ = live_taps(weight, [size] * 2, outputs, [stride] * 2, [dilation] * 2, (pad,) * 4)
    assert found.shape[2:] == (kept, kept)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_dilated_filters_on_small_images(tmp_path: Path, precision: str) -> None:
    net = Net(x=["n", 20, 5, 9])
    parts = [
        net("Conv", "x", normal(24, 20, 3, 3), normal(24), dilations=[d, d], pads=[d] * 4, kernel_shape=[3, 3])
        for d in (4, 6, 36)
    ]
    parts.append(net("Conv", "x", normal(20, 1, 3, 3), group=20, dilations=[8, 8], pads=[8] * 4))
    model = net.save(tmp_path / "net.onnx", *parts)
    kernels = {
        layer.parameters_as(Conv2dParameters).kernel
        for layer in lower(load_model(model, 3), "fp32").layers
        if "conv2d" in layer.op
    }
    assert kernels == {(3, 3), (1, 3), (1, 1)}
    agree(tmp_path, tuple(parts), net, precision, 3, 20, 5, 9)


@pytest.mark.parametrize("form", ["qdq", "signed", "unsigned", "dynamic"])
def test_of_8_bit_integers(tmp_path: Path, form: str) -> None:
    """What is left out reads the zero point, which means zero."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], dilations=[5, 5], pads=[5] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"], dilations=[2, 9], pads=[2, 9, 2, 9], group=24),
    ]
    weights = {"w": rng.standard_normal((24, 20, 3, 3)), "v": rng.standard_normal((24, 1, 3, 3))}
    path = tmp_path / "net.onnx"
    save(path, nodes, {k: v.astype(np.float32) for k, v in weights.items()}, ["n", 20, 4, 5], ["n", 24, 4, 5])
    path = quantise(path, form)
    graph = lower(load_model(path, 4), "fp32")
    windows = [p.window for p in map(parameters, graph.layers) if p is not None and p.window is not None]
    assert [(window.kernel, window.dilations) for window in windows] == [((1, 1), (1, 1)), ((3, 1), (2, 1))]
    x = rng.standard_normal((3, 20, 4, 5)).astype(np.float32)
    wanted = exact_session(str(path), ort.SessionOptions()).run(None, {"x": x})[0]
    found = run_graph(graph, {"x": x}, 3)[0]
    assert np.abs(found - wanted).max() <= (1e-5 if form == "dynamic" else 0.02) * np.abs(wanted).max()


def parameters(layer: Any) -> QuantisedProductParameters | None:
    return layer.parameters_as(QuantisedProductParameters) if layer.op in ("conv2d_int8", "depthwise_int8") else None

"""Weights rounded to bfloat16 so that each filter keeps its sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx_nets import Net, normal

from veltair.compiler.codegen.bf16_rounding import round_filters
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower


def test_filters_keep_their_sums() -> None:
    weight = np.random.default_rng(3).standard_normal((40, 37, 3, 3)).astype(np.float32) * np.float32(0.1)
    weight[5] = 0
    weight[6, 0] = 0.5  # which bfloat16 holds
    rounded = round_filters(weight)
    bits = rounded.view(np.uint32)
    assert not (bits & 0xFFFF).any()  # bfloat16 holds every one
    below = (weight.view(np.uint32) & 0xFFFF0000).view(np.float32)
    above = ((weight.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32)
    assert np.all((rounded == below) | (rounded == above))  # one of the two neighbours
    assert np.array_equal(rounded[weight == 0], weight[weight == 0]) and np.all(rounded[6, 0] == 0.5)

    nearest = (((weight.view(np.uint32) + 0x7FFF) >> 16) << 16).astype(np.uint32).view(np.float32)

    def shift(found: np.ndarray) -> float:
        return float(np.abs((found.astype(np.float64) - weight).sum((1, 2, 3))).max())

    step = 2.0**-9  # between two bfloat16 numbers just below a half
    assert shift(rounded) <= step < shift(nearest)
    spread = np.square(rounded - weight).sum() / np.square(nearest - weight).sum()
    assert spread < 1.2


def test_a_rounded_filter_stays_as_it_is() -> None:
    weight = np.random.default_rng(4).standard_normal((3, 5, 7)).astype(np.float32)
    once = round_filters(weight)
    assert np.array_equal(round_filters(once), once)


def test_convolutions_in_bfloat16_have_rounded_filters(tmp_path: Path) -> None:
    net = Net(x=[1, 5, 6, 7])
    weight = normal(9, 5, 3, 3)
    model = load_model(net.save(tmp_path / "net.onnx", net("Conv", "x", weight)), 1)
    (held,) = (spec.weights["weight"] for spec in lower(model, "bf16").layers if spec.op == "conv2d_bf16")
    assert np.array_equal(held, round_filters(weight))
    (held,) = (spec.weights["weight"] for spec in lower(model, "fp32").layers if spec.op == "conv2d")
    assert np.array_equal(held, weight)

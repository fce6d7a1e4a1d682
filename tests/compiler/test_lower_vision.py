"""Vision networks lose no time to copies: what is joined, activated or pooled stays in blocks, and is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from nets import Net, normal, run

from veltair.machine import features

PRECISIONS = ["fp32", "bf16"]


def agree(path: Path, outputs: tuple[str, ...], net: Net, precision: str, *shape: int) -> list[str]:
    """Run a net on random input; the operators of its layers."""
    if precision == "bf16" and "amx_bf16" not in features():
        pytest.skip("this CPU has no AMX bfloat16 tiles")
    model = net.save(path / "net.onnx", *outputs)
    feeds = {"x": normal(*shape) * 10}
    found, operators = run(model, feeds, precision, shape[0])
    for ours, theirs in zip(found, ort.InferenceSession(str(model)).run(None, feeds), strict=True):
        assert np.abs(ours - theirs).max() <= (1e-5 if precision == "fp32" else 3e-2) * np.abs(theirs).max()
    return operators


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


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("make", "copies"), [(dense_block, 1), (branches, 0), (ragged, 2)])
def test_concatenation_is_made_in_place(
    tmp_path: Path, make: Callable[[Net], tuple[str, ...]], copies: int, batch: int, precision: str
) -> None:
    net = Net(x=[batch, 3, 13, 10])
    operators = agree(tmp_path, make(net), net, precision, batch, 3, 13, 10)
    if batch == 1:
        assert operators.count("concat") == copies

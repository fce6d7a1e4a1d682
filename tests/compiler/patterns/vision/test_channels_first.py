"""Rows of channels in front of convolutions become blocks of channels in one step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_nets import Net, agree, normal

PRECISIONS = ["fp32", "bf16", "dots"]


def tokens(net: Net, channels: int, size: tuple[int, int], *, flat: bool = True) -> str:
    """A feature map of tokens that a dense layer has made."""
    rows = net("MatMul", "x", normal(channels, channels).T.copy())
    if flat:
        turned = net("Transpose", rows, perm=[0, 2, 1])
        return net("Reshape", turned, np.array([0, channels, *size]))
    return net("Transpose", net("Reshape", rows, np.array([0, *size, channels])), perm=[0, 3, 1, 2])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("channels", [64, 48])
def test_tokens_before_a_convolution(tmp_path: Path, channels: int, flat: bool, precision: str) -> None:
    """48 channels fill one and a half blocks of bfloat16."""
    net = Net(x=["n", 35, channels])
    y = net("Conv", tokens(net, channels, (5, 7), flat=flat), normal(32, channels, 3, 3), pads=[1] * 4)
    found = agree(tmp_path, (y,), net, precision, 2, 35, channels)
    assert "channels_first" in found
    assert not {"transpose", "to_blocked"} & set(found)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_joined_after_they_are_resized(tmp_path: Path, precision: str) -> None:
    """As SegFormer's decoder does it."""
    net = Net(x=[2, 35, 64])
    first = tokens(net, 64, (5, 7))
    second = net("Resize", tokens(net, 64, (5, 7)), "", np.array([1, 1, 2, 2], np.float32), mode="linear")
    small = net("Resize", first, "", np.array([1, 1, 2, 2], np.float32), mode="linear")
    y = net("Conv", net("Concat", small, second, axis=1), normal(32, 128, 1, 1))
    found = agree(tmp_path, (y,), net, precision, 2, 35, 64)
    assert found.count("channels_first") == 2 and found.count("resize") == 2
    assert not {"transpose", "to_blocked", "concat_rows", "generic"} & set(found)


def test_others_read_rows(tmp_path: Path) -> None:
    """What is an output, too, is turned."""
    net = Net(x=["n", 35, 64])
    image = tokens(net, 64, (5, 7))
    y = net("Conv", image, normal(32, 64, 3, 3), pads=[1] * 4)
    found = agree(tmp_path, (y, net("Add", image, np.float32(1))), net, "fp32", 2, 35, 64)
    assert "channels_first" not in found

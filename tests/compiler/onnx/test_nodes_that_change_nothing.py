"""Nodes that give what they read are left out, however they are spelled, and those that only seem to are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nets import Net, agree, normal

CHANNELS, SIZE = 32, (6, 9)
SHAPE = np.array([0, CHANNELS, *SIZE])
Spelling = Callable[[Net, str], str]


def resized(by: Any, **attributes: Any) -> Spelling:
    """To sizes, or by scales, which are floats."""
    places = ("", "") if by.dtype == np.int64 else ("",)
    return lambda net, x: net("Resize", x, *places, by, **attributes)


def layers(tmp_path: Path, spelling: Spelling, batch: Any = "n") -> list[str]:
    """Of two convolutions with the node between them."""
    net = Net(x=[batch, CHANNELS, *SIZE])
    first = net("Conv", "x", normal(CHANNELS, CHANNELS, 3, 3), pads=[1] * 4)
    last = net("Conv", spelling(net, first), normal(CHANNELS, CHANNELS, 3, 3), pads=[1] * 4)
    return agree(tmp_path, (last,), net, "fp32", 2, CHANNELS, *SIZE)


ONES, SAME_SIZE = np.ones(4, np.float32), np.array([2, CHANNELS, *SIZE])
NOTHING: dict[str, Spelling] = {
    "resize by one": resized(ONES),
    "linearly": resized(ONES, mode="linear", coordinate_transformation_mode="align_corners"),
    "by cubes": resized(ONES, mode="cubic", coordinate_transformation_mode="pytorch_half_pixel"),
    "transpose in order": lambda net, x: net("Transpose", x, perm=[0, 1, 2, 3]),
    "means of a pixel": lambda net, x: net("AveragePool", x, kernel_shape=[1, 1], strides=[1, 1]),
    "greatest of a pixel": lambda net, x: net("MaxPool", x, kernel_shape=[1, 1]),
    "join of one": lambda net, x: net("Concat", x, axis=1),
    "cut into one": lambda net, x: net("Split", x, axis=1),
    "sum of one": lambda net, x: net("Sum", x),
    "greatest of one": lambda net, x: net("Max", x),
    "sum along no axis": lambda net, x: net("ReduceSum", x, noop_with_empty_axes=1),
    "blocks of one": lambda net, x: net("DepthToSpace", x, blocksize=1),
    "an axis that comes and goes": lambda net, x: net("Squeeze", net("Unsqueeze", x, np.array([2])), np.array([2])),
    "rows and back": lambda net, x: net("Reshape", net("Flatten", x), SHAPE),
    "three views": lambda net, x: net(
        "Reshape", net("Unsqueeze", net("Reshape", x, np.array([0, 0, -1])), np.array([1])), SHAPE
    ),
    "one behind the other": lambda net, x: net("Concat", net("Sum", net("Transpose", x, perm=[0, 1, 2, 3])), axis=0),
}


@pytest.mark.parametrize("name", NOTHING)
def test_they_are_no_layers(tmp_path: Path, name: str) -> None:
    assert layers(tmp_path, NOTHING[name]) == ["to_blocked", "conv2d", "conv2d", "to_plain"]


def test_sizes_that_are_there_already(tmp_path: Path) -> None:
    assert layers(tmp_path, resized(SAME_SIZE, mode="linear"), 2) == ["to_blocked", "conv2d", "conv2d", "to_plain"]


SOMETHING: dict[str, Spelling] = {
    "as many pixels, others": resized(np.array([1, 1, 1.05, 1.1], np.float32), mode="linear"),
    "nearest, half a pixel further on": resized(
        ONES, mode="nearest", coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode="ceil"
    ),
    "turned and back the other way": lambda net, x: net(
        "Transpose", net("Transpose", x, perm=[0, 1, 3, 2]), perm=[0, 1, 2, 3]
    ),
    "other extents in the same order": lambda net, x: net(
        "Transpose", net("Reshape", x, np.array([0, 0, SIZE[1], SIZE[0]])), perm=[0, 1, 3, 2]
    ),
}


@pytest.mark.parametrize("name", SOMETHING)
def test_others_are(tmp_path: Path, name: str) -> None:
    assert len(layers(tmp_path, SOMETHING[name])) > 4


def test_what_the_model_gives_out_is_there(tmp_path: Path) -> None:
    net = Net(x=["n", CHANNELS, *SIZE])
    y = net("Conv", "x", normal(CHANNELS, CHANNELS, 3, 3), pads=[1] * 4)
    same = net("Sum", y)
    agree(tmp_path, (net("Relu", same), same), net, "fp32", 2, CHANNELS, *SIZE)

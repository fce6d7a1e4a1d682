"""Transpositions that turn matrices, however many axes they are written with, are one layer each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_nets import Net, agree, normal

from veltair.compiler.patterns.transpose import _matrices, _matrices_of_rows


@pytest.mark.parametrize(
    ("shape", "order", "found"),
    [
        ((-1, 196, 64), [0, 2, 1], (-1, 196, 64)),
        ((20, 30), [1, 0], (1, 20, 30)),
        ((-1, 4, 5, 64), [0, 3, 1, 2], (-1, 20, 64)),
        ((-1, 64, 4, 5), [0, 2, 3, 1], (-1, 64, 20)),
        ((-1, 3, 20, 30), [0, 1, 3, 2], (-3, 20, 30)),
        ((2, 1, 20, 1, 30), [1, 0, 4, 3, 2], (2, 20, 30)),
        ((-1, 1, 64), [1, 0, 2], None),  # nothing moves
        ((-1, 8, 16, 32), [0, 2, 1, 3], None),  # rows move as they are
        ((-1, 20, 30), [1, 2, 0], (1, -1, 600)),  # refused for its rows, which the batch decides
        ((2, 3, 4), [2, 1, 0], None),
    ],
)
def test_what_a_transposition_turns(shape: tuple[int, ...], order: list[int], found: object) -> None:
    assert _matrices(shape, order) == found


@pytest.mark.parametrize(
    ("shape", "order", "found"),
    [
        ((-1, 384, 12, 64), [0, 2, 1, 3], (-1, 384, 12, 64)),
        ((384, 1, 12, 64), [2, 1, 0, 3], (1, 384, 12, 64)),
        ((-1, 2, 7, 2, 7, 32), [0, 1, 3, 2, 4, 5], (-2, 7, 2, 224)),
        ((-1, 8, 16, 32), [0, 3, 1, 2], None),  # no row stays together
        ((-1, 384, 12, 8), [0, 2, 1, 3], None),  # shorter than a vector
        ((-1, 12, 64), [1, 0, 2], None),  # the batch decides how many
        ((4, 16), [0, 1], None),  # nothing moves
        ((1, 1, 1), [0, 2, 1], None),
    ],
)
def test_what_a_transposition_of_rows_turns(shape: tuple[int, ...], order: list[int], found: object) -> None:
    assert _matrices_of_rows(shape, order) == found


def between_tokens_and_maps(net: Net) -> tuple[str, ...]:
    """A layer of SegFormer: a convolution between two dense layers."""
    tokens = net("MatMul", "x", normal(24, 32))
    planes = net("Reshape", net("Transpose", tokens, perm=[0, 2, 1]), np.array([0, 32, 9, 6]))
    planes = net("Conv", planes, normal(32, 1, 3, 3), pads=[1, 1, 1, 1], group=32)
    tokens = net("Transpose", net("Reshape", planes, np.array([0, 32, 54])), perm=[0, 2, 1])
    return (net("MatMul", net("Relu", tokens), normal(32, 20)),)


@pytest.mark.parametrize(("batch", "precision"), [(1, "fp32"), (3, "fp32"), (2, "bf16")])
def test_tokens_become_a_feature_map_and_back(tmp_path: Path, batch: int, precision: str) -> None:
    net = Net(x=[batch, 54, 24])
    operators = agree(tmp_path, between_tokens_and_maps(net), net, precision, batch, 54, 24)
    assert operators.count("channels_first") == operators.count("channels_last") == 1
    assert not {"to_plain", "to_blocked", "transpose", "generic"} & set(operators)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rows_that_no_convolution_reads_are_turned(tmp_path: Path, precision: str) -> None:
    """Tokens are mixed, as in an MLP-Mixer."""
    net = Net(x=[2, 54, 24])
    planes = net("Transpose", net("MatMul", "x", normal(24, 32)), perm=[0, 2, 1])
    operators = agree(tmp_path, (net("MatMul", planes, normal(54, 20)),), net, precision, 2, 54, 24)
    assert operators.count("transpose") == 1 and "generic" not in operators

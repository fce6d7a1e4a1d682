"""Attention whose Q, K and V are taken out of one product, in the spellings of exporters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nets import Net, normal, run

TOKENS, HEADS, WIDTH = 6, 2, 16
ROW = HEADS * WIDTH
Sides = list[str]  # Q, K and V, heads first


def product(net: Net, width: int) -> str:
    return net("Add", net("MatMul", "x", normal(ROW, width) * 3), normal(width))


def permuted(net: Net) -> str:
    """timm's `qkv(x).reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)`."""
    split = net("Reshape", product(net, 3 * ROW), np.array([0, 0, 3, HEADS, WIDTH]))
    return net("Transpose", split, perm=[2, 0, 3, 1, 4])


def gathered(net: Net) -> Sides:
    every = permuted(net)
    return [net("Gather", every, np.int64(i), axis=0) for i in (0, 1, -1)]


def sliced(net: Net) -> Sides:
    every, step = permuted(net), [np.array([0]), np.array([1])]
    pieces = [net("Slice", every, np.array([i]), np.array([i + 1]), *step) for i in range(3)]
    return [net("Squeeze", piece, np.array([0])) for piece in pieces]


def unbound(net: Net) -> Sides:
    return [net("Squeeze", piece, np.array([0])) for piece in net.split(permuted(net), 3, axis=0)]


def columns(net: Net) -> Sides:
    """The product is cut into three, each of which is split into heads."""
    pieces = net.split(product(net, 3 * ROW), 3, axis=2)
    split = [net("Reshape", piece, np.array([0, 0, HEADS, WIDTH])) for piece in pieces]
    return [net("Transpose", piece, perm=[0, 2, 1, 3]) for piece in split]


def flat(net: Net) -> Sides:
    """GPT-2's: the product of all rows, one reshape behind it."""
    rows = net("Gemm", net("Reshape", "x", np.array([-1, ROW])), normal(ROW, 3 * ROW) * 3, normal(3 * ROW))
    pieces = net.split(net("Reshape", rows, np.array([-1, TOKENS, 3 * ROW])), 3, axis=2)
    split = [net("Reshape", piece, np.array([0, 0, HEADS, WIDTH])) for piece in pieces]
    return [net("Transpose", piece, perm=[0, 2, 1, 3]) for piece in split]


def two_products(net: Net) -> Sides:
    """PVT's: Q of one product, K and V of another."""
    query = net("Reshape", product(net, ROW), np.array([0, 0, HEADS, WIDTH]))
    both = net("Reshape", product(net, 2 * ROW), np.array([0, -1, 2, HEADS, WIDTH]))
    both = net("Transpose", both, perm=[2, 0, 3, 1, 4])
    return [net("Transpose", query, perm=[0, 2, 1, 3]), *(net("Gather", both, np.int64(i), axis=0) for i in range(2))]


def interleaved(net: Net) -> Sides:
    """GPT-NeoX's: Q, K and V of a head lie side by side."""
    split = net("Reshape", product(net, 3 * ROW), np.array([0, 0, HEADS, 3, WIDTH]))
    every = net("Transpose", split, perm=[3, 0, 2, 1, 4])
    return [net("Gather", every, np.int64(i), axis=0) for i in range(3)]


def every_second(net: Net) -> Sides:
    """Q from every second column: a step that rows of heads do not have."""
    wide = net("Reshape", product(net, 2 * ROW), np.array([0, 0, HEADS, WIDTH, 2]))
    query = net("Transpose", net("Gather", wide, np.int64(1), axis=4), perm=[0, 2, 1, 3])
    return [query, *two_products(net)[1:]]


def attend(net: Net, sides: Sides) -> str:
    query, key, value = sides
    scores = net("MatMul", net("Mul", query, np.float32(WIDTH**-0.5)), net("Transpose", key, perm=[0, 1, 3, 2]))
    mixed = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
    return net("Reshape", mixed, np.array([0, 0, ROW]))


@pytest.mark.parametrize(
    ("spelling", "in_place"),
    [
        *((spelling, True) for spelling in (gathered, sliced, unbound, columns, flat, two_products)),
        *((spelling, False) for spelling in (interleaved, every_second)),
    ],
)
def test_heads_are_read_where_they_lie(tmp_path: Path, spelling: Callable[[Net], Sides], in_place: bool) -> None:
    net = Net(x=["n", TOKENS, ROW])
    path = net.save(tmp_path / "net.onnx", attend(net, spelling(net)))
    feeds = {"x": normal(3, TOKENS, ROW) * 10}
    [found], operators = run(path, feeds, "fp32", batch=3)
    [expected] = ort.InferenceSession(str(path)).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert "attention" in operators
    assert (set(operators) == {"matmul", "attention"}) is in_place  # else some are copied into rows first


def test_what_others_read_is_made_too(tmp_path: Path) -> None:
    net = Net(x=["n", TOKENS, ROW])
    sides = gathered(net)
    path = net.save(tmp_path / "net.onnx", attend(net, sides), net("Neg", sides[1]), sides[2])
    feeds = {"x": normal(3, TOKENS, ROW) * 10}
    found, operators = run(path, feeds, "fp32", batch=3)
    for ours, theirs in zip(found, ort.InferenceSession(str(path)).run(None, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert "attention" in operators

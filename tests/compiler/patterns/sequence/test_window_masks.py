"""Attention in shifted windows, as Swin has it: the mask of each window repeats with the images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nets import Net, normal, run

WINDOWS, TOKENS, HEADS, WIDTH = 4, 9, 2, 16
ROW = HEADS * WIDTH


def shifted(path: Path, bias: bool, mask: tuple[int, ...], between: str = "") -> Path:
    """mask: its shape, behind the axis of images. between: an operator that reads the scores of windows as well."""
    net = Net(x=["n", WINDOWS, TOKENS, ROW])
    x = net("Reshape", "x", np.array([-1, TOKENS, ROW]))
    rows = net("Add", net("MatMul", x, normal(ROW, 3 * ROW) * 3), normal(3 * ROW))
    split = net("Transpose", net("Reshape", rows, np.array([-1, TOKENS, 3, HEADS, WIDTH])), perm=[2, 0, 3, 1, 4])
    query, key, value = (net("Gather", split, np.int64(i), axis=0) for i in range(3))
    scores = net("MatMul", net("Mul", query, np.float32(0.25)), net("Transpose", key, perm=[0, 1, 3, 2]))
    scores = net("Add", scores, normal(1, HEADS, TOKENS, TOKENS)) if bias else scores
    hidden = np.where(np.random.default_rng(1).random(mask) < 0.4, -100, 0).astype(np.float32)
    windows = net("Reshape", scores, np.array([-1, WINDOWS, HEADS, TOKENS, TOKENS]))
    masked = net("Add", windows, hidden)
    scores = net("Reshape", masked, np.array([-1, HEADS, TOKENS, TOKENS]))
    mixed = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
    outputs = [net("Reshape", mixed, np.array([-1, WINDOWS, TOKENS, ROW]))]
    return net.save(path, *outputs, *([net(between, masked)] if between else []))


@pytest.mark.parametrize("way", ["fp32", "dots"])
@pytest.mark.parametrize(
    ("bias", "mask"),
    [(True, (1, WINDOWS, 1, TOKENS, TOKENS)), (False, (WINDOWS, HEADS, 1, TOKENS))],
    ids=["biased", "of keys"],
)
def test_shifted_windows_are_one_layer(tmp_path: Path, bias: bool, mask: tuple[int, ...], way: str) -> None:
    path = shifted(tmp_path / "net.onnx", bias, mask)
    feeds = {"x": normal(3, WINDOWS, TOKENS, ROW) * 8}
    [found], operators = run(path, feeds, way, batch=3)
    [expected] = ort.InferenceSession(str(path)).run(None, feeds)
    tolerance = 1e-5 if way == "fp32" else 0.03
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
    assert "attention" in operators
    assert "batched_matmul" not in operators


def test_scores_that_others_read_are_made(tmp_path: Path) -> None:
    path = shifted(tmp_path / "net.onnx", True, (1, WINDOWS, 1, TOKENS, TOKENS), "Neg")
    feeds = {"x": normal(3, WINDOWS, TOKENS, ROW) * 8}
    found, operators = run(path, feeds, "fp32", batch=3)
    for ours, theirs in zip(found, ort.InferenceSession(str(path)).run(None, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert "attention" not in operators

"""Attention whose softmax exporters guard against rows without keys: `Where(IsNaN(p), 0, p)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx_nets import Net, normal, run

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

TOKENS, HEADS, WIDTH = 6, 2, 32
CAUSAL = np.triu(np.full((1, 1, TOKENS, TOKENS), -np.inf, np.float32), 1)
LOWEST_ROW = np.where(np.arange(TOKENS)[:, None] == 2, np.finfo(np.float32).min, CAUSAL).astype(np.float32)
EMPTY_ROW = np.where(np.arange(TOKENS)[:, None] == 2, -np.inf, CAUSAL).astype(np.float32)


def guarded(path: Path, mask: NDArray[Any] | None, instead: float = 0.0) -> Path:
    net = Net(x=["n", TOKENS, HEADS * WIDTH])

    def heads(order: list[int]) -> str:
        rows = net("MatMul", "x", normal(HEADS * WIDTH, HEADS * WIDTH) * 3)
        return net("Transpose", net("Reshape", rows, np.array([0, 0, HEADS, WIDTH])), perm=order)

    scores = net("MatMul", heads([0, 2, 1, 3]), heads([0, 2, 3, 1]))
    scores = net("Mul", scores, np.float32(WIDTH**-0.5))
    scores = scores if mask is None else net("Add", scores, mask)
    likely = net("Softmax", scores, axis=-1)
    likely = net("Where", net("IsNaN", likely), np.float32(instead), likely)
    mixed = net("Transpose", net("MatMul", likely, heads([0, 2, 1, 3])), perm=[0, 2, 1, 3])
    return net.save(path, net("Reshape", mixed, np.array([0, 0, HEADS * WIDTH])))


@pytest.mark.parametrize(
    ("mask", "instead", "fused"),
    [(None, 0.0, True), (CAUSAL, 0.0, True), (EMPTY_ROW, 0.0, True), (LOWEST_ROW, 0.0, True), (CAUSAL, 1.0, False)],
    ids=["no mask", "causal", "empty row", "lowest row", "another value"],
)
def test_guard_belongs_to_attention(tmp_path: Path, mask: NDArray[Any] | None, instead: float, fused: bool) -> None:
    path = guarded(tmp_path / "net.onnx", mask, instead)
    feeds = {"x": normal(3, TOKENS, HEADS * WIDTH) * 10}
    [found], operators = run(path, feeds, "fp32", batch=3)
    [expected] = ort.InferenceSession(str(path)).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert ("attention" in operators) is fused


def test_rows_without_keys_keep_their_guard_in_bfloat16(tmp_path: Path) -> None:
    """There -infinity is taken for the lowest float, which gives the mean of all keys."""
    for mask, fused in ((CAUSAL, True), (EMPTY_ROW, False)):
        graph = lower(load_model(guarded(tmp_path / "net.onnx", mask), 3), "bf16")
        assert ("attention" in [layer.op for layer in graph.layers]) is fused


@pytest.mark.parametrize("lowest", [-np.inf, np.finfo(np.float32).min], ids=["infinity", "lowest float"])
@pytest.mark.parametrize("merged", [False, True], ids=["plain", "axes merged"])
def test_attention_as_exporters_spell_scaled_dot_product_attention(tmp_path: Path, lowest: float, merged: bool) -> None:
    """Both sides scaled, a mask computed from an input that hides every key of a sample, the guard, merged rows."""
    width = HEADS * WIDTH
    net = Net(x=["n", TOKENS, width], keep=["n", TOKENS])
    root = np.float32(WIDTH**-0.25)

    def heads(order: list[int]) -> str:
        rows = net("Add", net("MatMul", "x", normal(width, width) * 3), normal(width))
        return net("Transpose", net("Reshape", rows, np.array([0, 0, HEADS, WIDTH])), perm=order)

    if merged:
        flat = net("Reshape", heads([0, 2, 1, 3]), np.array([-1, TOKENS, WIDTH]))
        key = net("Reshape", net("Transpose", flat, perm=[0, 2, 1]), np.array([-1, HEADS, WIDTH, TOKENS]))
    else:
        key = heads([0, 2, 3, 1])
    scores = net("MatMul", net("Mul", heads([0, 2, 1, 3]), root), net("Mul", root, key))
    kept = net("Unsqueeze", net("Greater", "keep", np.float32(0)), np.array([1, 2]))
    mask = net("Where", kept, np.float32(0), np.float32(lowest))
    likely = net("Softmax", net("Add", scores, mask), axis=-1)
    likely = net("Where", net("IsNaN", likely), np.float32(0), likely)
    mixed = net("Reshape", net("MatMul", likely, heads([0, 2, 1, 3])), np.array([-1, HEADS, TOKENS, WIDTH]))
    mixed = net("Transpose", mixed, perm=[0, 2, 1, 3])
    rows = net("Reshape", mixed, np.array([-1, width] if merged else [0, 0, width]))
    path = net.save(tmp_path / "net.onnx", net("Reshape", net("Neg", rows), np.array([-1, TOKENS, width])))
    keep = np.ones((3, TOKENS), np.float32)
    keep[0, 3:] = keep[1] = -1
    feeds = {"x": normal(3, TOKENS, width) * 10, "keep": keep}
    [found], operators = run(path, feeds, "fp32", batch=3)
    [expected] = ort.InferenceSession(str(path)).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert operators.count("attention") == operators.count("matmul") == 1  # Q, K and V are one product

"""Attention whose softmax exporters guard against rows without keys: `Where(IsNaN(p), 0, p)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx_nets import Net, normal, run

TOKENS, HEADS, WIDTH = 6, 2, 32
CAUSAL = np.triu(np.full((1, 1, TOKENS, TOKENS), -np.inf, np.float32), 1)
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
    [(None, 0.0, True), (CAUSAL, 0.0, True), (EMPTY_ROW, 0.0, False), (CAUSAL, 1.0, False)],
    ids=["no mask", "causal", "empty row", "another value"],
)
def test_guard_belongs_to_attention_where_rows_keep_a_key(
    tmp_path: Path, mask: NDArray[Any] | None, instead: float, fused: bool
) -> None:
    path = guarded(tmp_path / "net.onnx", mask, instead)
    feeds = {"x": normal(3, TOKENS, HEADS * WIDTH) * 10}
    [found], operators = run(path, feeds, "fp32", batch=3)
    [expected] = ort.InferenceSession(str(path)).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert ("attention" in operators) is fused

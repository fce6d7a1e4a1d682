"""Attention with rotary embeddings and grouped heads, as decoders have it, is one layer that agrees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nets import Net, normal, run

TOKENS, HEADS, WIDTH = 5, 4, 16
ROW = HEADS * WIDTH
TOKENS_FIRST = [0, 2, 1, 3]


def split(net: Net, heads: int) -> str:
    rows = net("MatMul", "x", normal(ROW, heads * WIDTH) * 3)
    return net("Transpose", net("Reshape", rows, np.array([0, 0, heads, WIDTH])), perm=TOKENS_FIRST)


def turned_halves(net: Net, x: str, part: int = WIDTH) -> str:
    """Rotary embedding of the first `part` of each head, as Llama (all of it) and GPT-NeoX (some of it) have it."""
    angles = np.arange(TOKENS)[:, None] / 10 ** np.linspace(0, 2, part // 2)
    cos, sin = (np.tile(f(angles), 2)[None, None].astype(np.float32) for f in (np.cos, np.sin))
    pieces = [
        net("Slice", x, np.array([begin]), np.array([end]), np.array([3]))
        for begin, end in ((0, part), (part // 2, part), (0, part // 2), (part, WIDTH))
    ]
    other = net("Concat", net("Neg", pieces[1]), pieces[2], axis=3)
    turned = net("Add", net("Mul", pieces[0], cos), net("Mul", other, sin))
    return turned if part == WIDTH else net("Concat", turned, pieces[3], axis=3)


def repeated(net: Net, x: str, heads: int, how: str) -> str:
    """Each head for its group: `repeat_kv`."""
    group = HEADS // heads
    if group == 1:
        return x
    single = net("Unsqueeze", x, np.array([2]))
    if how == "Tile":
        every = net("Tile", single, np.array([1, 1, group, 1, 1]))
    else:
        every = net("Expand", single, np.array([1, heads, group, TOKENS, WIDTH]))
    return net("Reshape", every, np.array([0, HEADS, TOKENS, WIDTH]))


@pytest.mark.parametrize("way", ["fp32", "bf16", "dots"])
@pytest.mark.parametrize(
    ("heads", "part", "how"),
    [(HEADS, WIDTH, ""), (2, WIDTH, "Expand"), (1, 8, "Tile")],
    ids=["rotary", "grouped", "one head for all"],
)
def test_decoder_attention_is_one_layer(tmp_path: Path, heads: int, part: int, how: str, way: str) -> None:
    net = Net(x=["n", TOKENS, ROW])
    query = turned_halves(net, split(net, HEADS), part)
    key = repeated(net, turned_halves(net, split(net, heads), part), heads, how)
    value = repeated(net, split(net, heads), heads, how)
    scores = net("MatMul", query, net("Transpose", key, perm=[0, 1, 3, 2]))
    scores = net("Mul", scores, np.float32(WIDTH**-0.5))
    scores = net("Add", scores, np.triu(np.full((1, 1, TOKENS, TOKENS), np.finfo(np.float32).min, np.float32), 1))
    mixed = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), value), perm=TOKENS_FIRST)
    path = net.save(tmp_path / "net.onnx", net("Reshape", mixed, np.array([0, 0, ROW])))
    feeds = {"x": normal(3, TOKENS, ROW) * 8}
    [found], operators = run(path, feeds, way, batch=3)
    [expected] = ort.InferenceSession(str(path)).run(None, feeds)
    tolerance = 1e-5 if way == "fp32" else 0.03
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
    assert operators.count("attention") == 1
    assert "batched_matmul" not in operators


def test_inputs_of_the_model_may_be_heads(tmp_path: Path) -> None:
    """Keys and values that a client keeps, of another length than its queries."""
    keys = 7
    net = Net(q=["n", HEADS, TOKENS, WIDTH], k=["n", HEADS, keys, WIDTH], v=["n", HEADS, keys, WIDTH])
    scores = net("MatMul", "q", net("Transpose", "k", perm=[0, 1, 3, 2]))
    mixed = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), "v"), perm=TOKENS_FIRST)
    path = net.save(tmp_path / "net.onnx", net("Reshape", mixed, np.array([0, 0, ROW])))
    feeds = {name: normal(3, HEADS, count, WIDTH) * 20 for name, count in (("q", TOKENS), ("k", keys), ("v", keys))}
    [found], operators = run(path, feeds, "fp32", batch=3)
    [expected] = ort.InferenceSession(str(path)).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert operators == ["attention"]


def test_queries_of_a_joint_product_beside_kept_keys(tmp_path: Path) -> None:
    """As GPT-2 decodes: its dense layer takes the reshape behind it, and queries lie in the rows before that."""
    past = 3
    net = Net(x=["n", TOKENS, ROW], k=["n", HEADS, past, WIDTH], v=["n", HEADS, past, WIDTH])
    rows = net("Gemm", net("Reshape", "x", np.array([-1, ROW])), normal(ROW, 3 * ROW) * 3, normal(3 * ROW))
    parts = net.split(net("Reshape", rows, np.array([-1, TOKENS, 3 * ROW])), 3, axis=2)
    query, key, value = (
        net("Transpose", net("Reshape", part, np.array([0, 0, HEADS, WIDTH])), perm=TOKENS_FIRST) for part in parts
    )
    key, value = net("Concat", "k", key, axis=2), net("Concat", "v", value, axis=2)
    scores = net("Mul", net("MatMul", query, net("Transpose", key, perm=[0, 1, 3, 2])), np.float32(WIDTH**-0.5))
    mixed = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), value), perm=TOKENS_FIRST)
    path = net.save(tmp_path / "net.onnx", net("Reshape", mixed, np.array([0, 0, ROW])), key, value)
    feeds = {"x": normal(3, TOKENS, ROW) * 8, **{name: normal(3, HEADS, past, WIDTH) * 8 for name in "kv"}}
    outputs, operators = run(path, feeds, "fp32", batch=3)
    for found, expected in zip(outputs, ort.InferenceSession(str(path)).run(None, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert operators.count("attention") == 1


def test_what_lies_between_two_attentions_belongs_to_one_of_them(tmp_path: Path) -> None:
    """The second reads the rows that the first has merged; a product's factor behind it is not that of its scores."""

    def attention(query: str, key: str, value: str) -> str:
        scores = net("MatMul", query, net("Transpose", key, perm=[0, 1, 3, 2]))
        mixed = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), value), perm=TOKENS_FIRST)
        return net("Reshape", mixed, np.array([0, 0, ROW]))

    net = Net(x=["n", HEADS, TOKENS, WIDTH], y=["n", HEADS, WIDTH, WIDTH])
    first = attention("x", "x", "x")
    heads = net("Transpose", net("Reshape", first, np.array([0, 0, HEADS, WIDTH])), perm=TOKENS_FIRST)
    query = net("Mul", net("MatMul", heads, "y"), np.float32(WIDTH**-0.5))
    path = net.save(tmp_path / "net.onnx", attention(query, heads, heads))
    feeds = {"x": normal(3, HEADS, TOKENS, WIDTH) * 8, "y": normal(3, HEADS, WIDTH, WIDTH)}
    [found], operators = run(path, feeds, "fp32", batch=3)
    [expected] = ort.InferenceSession(str(path)).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert operators.count("attention") == 2

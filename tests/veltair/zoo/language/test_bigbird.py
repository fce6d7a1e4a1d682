"""The block-sparse attention of the zoo against dense attention in numpy that hides what is not attended to."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from veltair.zoo.language import bigbird
from veltair.zoo.language.bigbird import ATTENDED, BLOCK, BLOCKS, HEADS, HIDDEN, TOKENS, WIDTH, attended_blocks
from veltair.zoo.registry import ZOO


def test_each_block_reads_the_global_ones_its_window_and_random_others() -> None:
    found = attended_blocks(np.random.default_rng(0))
    assert found.shape == (BLOCKS, ATTENDED)
    for block, ids in enumerate(found.tolist()):
        assert len(set(ids)) == ATTENDED and set(ids) <= set(range(BLOCKS))
        assert {0, BLOCKS - 1, block, max(block - 1, 0), min(block + 1, BLOCKS - 1)} <= set(ids)


def test_it_is_attention_to_these_blocks() -> None:
    proto = bigbird.build(2)
    onnx.checker.check_model(proto, full_check=True)
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    learned = [held[f"{name}.{part}"] for name in ("query", "key", "value", "output") for part in ("weight", "bias")]
    assert sum(array.size for array in learned) == ZOO["bigbird"].parameters
    x = np.random.default_rng(0).standard_normal((TOKENS, HIDDEN), np.float32)
    (found,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"hidden": x[None]})
    keys, values = (x @ held[f"{name}.weight"] + held[f"{name}.bias"] for name in ("key", "value"))
    attended = held["attended"].reshape(BLOCKS, ATTENDED)
    for block in (0, 17, BLOCKS - 1):
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        queries = x[rows] @ held["query.weight"] + held["query.bias"]
        seen = np.isin(np.arange(TOKENS) // BLOCK, attended[block])
        heads = []
        for head in range(HEADS):
            part = slice(head * WIDTH, (head + 1) * WIDTH)
            scores = np.where(seen, queries[:, part] @ keys[:, part].T / np.sqrt(WIDTH), -np.inf)
            likely = np.exp(scores - scores.max(1, keepdims=True))
            heads.append(likely / likely.sum(1, keepdims=True) @ values[:, part])
        wanted = np.concatenate(heads, 1) @ held["output.weight"] + held["output.bias"]
        np.testing.assert_allclose(found[0, rows], wanted, rtol=1e-3, atol=1e-4)

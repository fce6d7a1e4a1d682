"""A block-sparse attention layer of BigBird (Zaheer et al. 2020) on 4096 tokens in blocks of 64.

Each block of queries attends to the first and the last block, to itself and its neighbours, and to random others. Keys
and values of these blocks are gathered, as Hugging Face's implementation does. Here, global blocks are read by all and
read themselves what all others read.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from veltair.zoo.conv_graph import model
from veltair.zoo.onnx_writer import OnnxWriter

TOKENS, HIDDEN, HEADS, BLOCK = 4096, 768, 12, 64
ATTENDED = 8  # blocks of keys for each block of queries: 2 global, 3 of a window, 3 random
BLOCKS, WIDTH = TOKENS // BLOCK, HIDDEN // HEADS
QOS_MS, MAX_BATCH = 2000, 2


def attended_blocks(rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Returns the ids of the blocks that each block reads, (blocks, ATTENDED), none of them twice."""
    found = []
    for block in range(BLOCKS):
        near = {0, BLOCKS - 1, *range(max(block - 1, 0), min(block + 2, BLOCKS))}
        others = rng.permutation([other for other in range(BLOCKS) if other not in near])
        found.append([*sorted(near), *others[: ATTENDED - len(near)]])
    return np.array(found, np.int64)


def build(seed: int) -> onnx.ModelProto:
    """hidden float32 (n, 4096, 768) -> attended float32 (n, 4096, 768)."""
    rng = np.random.default_rng(seed)
    g = OnnxWriter(rng)
    g.constant("attended", attended_blocks(rng).reshape(-1))

    def linear(x: str, name: str) -> str:
        weight = rng.standard_normal((HIDDEN, HIDDEN), np.float32) * np.float32(math.sqrt(1 / HIDDEN))
        product = g.node("MatMul", [x, g.constant(f"{name}.weight", weight)], f"{name}.product")
        bias = g.constant(f"{name}.bias", rng.standard_normal(HIDDEN, np.float32) * np.float32(0.1))
        return g.node("Add", [product, bias], name)

    def reshape(x: str, *shape: int) -> str:
        return g.node("Reshape", [x, g.constant(f"{x}.shape", np.array([-1, *shape]))], f"{x}.shaped")

    def blocks(name: str) -> str:
        """(n, heads, blocks, tokens of a block, width)."""
        split = reshape(linear("hidden", name), BLOCKS, BLOCK, HEADS, WIDTH)
        return g.node("Transpose", [split], f"{name}.blocks", perm=[0, 3, 1, 2, 4])

    def gathered(name: str) -> str:
        """(n, heads, blocks, tokens of the attended blocks, width)."""
        whole = reshape(blocks(name), HEADS, BLOCKS, BLOCK * WIDTH)
        return reshape(
            g.node("Gather", [whole, "attended"], f"{name}.gathered", axis=2), HEADS, BLOCKS, ATTENDED * BLOCK, WIDTH
        )

    keys = g.node("Transpose", [gathered("key")], "key.turned", perm=[0, 1, 2, 4, 3])
    scale = g.constant("scale", np.array(1 / math.sqrt(WIDTH), np.float32))
    scores = g.node("Mul", [g.node("MatMul", [blocks("query"), keys], "products"), scale], "scores")
    mixed = g.node("MatMul", [g.node("Softmax", [scores], "weights", axis=-1), gathered("value")], "mixed")
    joined = reshape(g.node("Transpose", [mixed], "mixed.turned", perm=[0, 2, 3, 1, 4]), TOKENS, HIDDEN)
    names = "hidden", linear(joined, "output")
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", TOKENS, HIDDEN]) for name in names)
    graph = helper.make_graph(g.nodes, "bigbird", [given], [made], g.initializers)
    return model(graph, {"qos_ms": QOS_MS, "max_batch": MAX_BATCH})

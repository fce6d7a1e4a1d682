"""BERT with a head for SQuAD (Devlin et al. 2018), in the form that PyTorch exports Hugging Face's model.

Weights are normal as in an untrained BERT, but with a larger deviation in queries and keys: the attention of a trained
network is neither uniform nor one-hot, and with a deviation of 0.02 all tokens would look alike to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto, helper

from veltair.zoo.conv_graph import model
from veltair.zoo.external_tensors import BuiltModel, ExternalTensor, external_initializers
from veltair.zoo.onnx_writer import OnnxWriter

VOCABULARY, POSITIONS, SEGMENTS = 30522, 512, 2
HEAD = 64  # channels of an attention head
EPSILON = 1e-12
MASKED = -10000.0  # added to the scores of padding


@dataclass(frozen=True, slots=True)
class BertShape:
    """The shape of a BERT; by default BERT-Base with 384 tokens, MLPerf's length.

    >>> BertShape().heads
    12
    """

    layers: int = 12
    hidden: int = 768
    tokens: int = 384
    qos_ms: int = 1000

    @property
    def heads(self) -> int:
        return self.hidden // HEAD


BASE = BertShape()
LARGE = BertShape(layers=24, hidden=1024, qos_ms=3000)


@dataclass(slots=True)
class BertGraph(OnnxWriter):
    """The graph of a BERT, with its matrices as external tensors.

    >>> graph = BertGraph(np.random.default_rng(0))
    >>> graph.linear("x", "dense", 768, 768, gain=1.0)
    'dense'
    """

    external: list[ExternalTensor] = field(default_factory=list)

    def matrix(self, name: str, rows: int, columns: int, deviation: float) -> str:
        self.external.append(ExternalTensor(name, (rows, columns), deviation=deviation))
        return name

    def vector(self, name: str, length: int, centre: float, deviation: float) -> str:
        values = centre + deviation * self.rng.standard_normal(length)
        return self.constant(name, values.astype(np.float32))

    def linear(self, x: str, name: str, inputs: int, outputs: int, gain: float) -> str:
        """Appends x @ weight + bias, with a deviation of gain times that of x."""
        weight = self.matrix(f"{name}.weight", inputs, outputs, gain / math.sqrt(inputs))
        product = self.node("MatMul", [x, weight], f"{name}.matmul")
        return self.node("Add", [self.vector(f"{name}.bias", outputs, 0.0, 0.05), product], name)

    def norm(self, x: str, name: str, width: int) -> str:
        inputs = [x, self.vector(f"{name}.weight", width, 1.0, 0.1), self.vector(f"{name}.bias", width, 0.0, 0.05)]
        return self.node("LayerNormalization", inputs, name, axis=-1, epsilon=EPSILON)


def build(seed: int, shape: BertShape, location: str) -> BuiltModel:
    """input_ids, attention_mask, token_type_ids int64 (1, tokens) -> start_logits, end_logits float32 (1, tokens).

    location: name of the file that is to hold the tensors of the second result; vectors are in the model itself.
    """
    g = BertGraph(np.random.default_rng(seed))
    for name, value in _SCALARS.items():
        g.constant(name, np.array(value, np.float32))
    x = _embeddings(g, shape)
    g.node("Unsqueeze", ["attention_mask", g.constant("mask.axes", np.array([1, 2], np.int64))], "mask.4d")
    g.node("Cast", ["mask.4d"], "mask.float", to=TensorProto.FLOAT)
    g.node("Sub", ["one", "mask.float"], "mask.padding")
    g.node("Mul", ["mask.padding", "masked"], "mask")
    g.constant("heads", np.array([1, shape.tokens, shape.heads, HEAD], np.int64))
    g.constant("together", np.array([1, shape.tokens, shape.hidden], np.int64))
    for layer in range(shape.layers):
        x = _layer(g, x, f"encoder.{layer}", shape.hidden)
    logits = g.linear(x, "qa_outputs", shape.hidden, 2, gain=2.0)
    g.constant("split", np.array([1, 1], np.int64))
    parts, outputs = ["start", "end"], ["start_logits", "end_logits"]
    g.nodes.append(helper.make_node("Split", [logits, "split"], parts, name="/split", axis=-1))
    last = g.constant("last", np.array([-1], np.int64))
    for part, output in zip(parts, outputs, strict=True):
        g.node("Squeeze", [part, last], output)
    graph = helper.make_graph(
        g.nodes,
        "bert",
        [helper.make_tensor_value_info(n, TensorProto.INT64, [1, shape.tokens]) for n in INPUTS],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, shape.tokens]) for n in outputs],
        [*g.initializers, *external_initializers(g.external, location)],
    )
    return model(graph, {"qos_ms": shape.qos_ms}), g.external


INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_SCALARS = {
    "one": 1.0,
    "half": 0.5,
    "masked": MASKED,
    "sqrt_two": math.sqrt(2),
    "sqrt_head": math.sqrt(HEAD),
}


def _embeddings(g: BertGraph, shape: BertShape) -> str:
    words = g.matrix("embeddings.word", VOCABULARY, shape.hidden, 0.04)
    positions = g.matrix("embeddings.position", POSITIONS, shape.hidden, 0.02)
    segments = g.matrix("embeddings.token_type", SEGMENTS, shape.hidden, 0.01)
    g.node("Gather", [words, "input_ids"], "embeddings.words", axis=0)
    g.node("Gather", [segments, "token_type_ids"], "embeddings.segments", axis=0)
    ids = g.constant("position_ids", np.arange(shape.tokens, dtype=np.int64)[None])
    g.node("Gather", [positions, ids], "embeddings.positions", axis=0)
    g.node("Add", ["embeddings.words", "embeddings.segments"], "embeddings.typed")
    g.node("Add", ["embeddings.typed", "embeddings.positions"], "embeddings.sum")
    return g.norm("embeddings.sum", "embeddings", shape.hidden)


def _layer(g: BertGraph, x: str, name: str, hidden: int) -> str:
    """Attention, then a feed-forward net, each added to its input and normalised after the sum."""
    q, k, v = (f"{name}.attention.{part}" for part in ("query", "key", "value"))
    # Queries and keys of deviation 1.5 make scores of 1.5 ** 2: a token attends to some twenty others. Sums that their
    # own input dominates keep the tokens apart: with gains of one, all have become the same by the last layer.
    for part, gain in ((q, 1.5), (k, 1.5), (v, 1.0)):
        g.node("Reshape", [g.linear(x, part, hidden, hidden, gain), "heads"], f"{part}.split")
        g.node("Transpose", [f"{part}.split"], f"{part}.heads", perm=[0, 2, 3, 1] if part == k else [0, 2, 1, 3])
    scores = g.node("MatMul", [f"{q}.heads", f"{k}.heads"], f"{name}.attention.products")
    scores = g.node("Div", [scores, "sqrt_head"], f"{name}.attention.scaled")
    scores = g.node("Add", [scores, "mask"], f"{name}.attention.scores")
    weights = g.node("Softmax", [scores], f"{name}.attention.weights", axis=-1)
    context = g.node("MatMul", [weights, f"{v}.heads"], f"{name}.attention.context")
    context = g.node("Transpose", [context], f"{name}.attention.tokens", perm=[0, 2, 1, 3])
    context = g.node("Reshape", [context, "together"], f"{name}.attention.joined")
    y = g.linear(context, f"{name}.attention.output", hidden, hidden, gain=0.3)
    x = g.norm(g.node("Add", [y, x], f"{name}.attention.sum"), f"{name}.attention.norm", hidden)
    y = _gelu(g, g.linear(x, f"{name}.intermediate", hidden, 4 * hidden, gain=1.0), f"{name}.gelu")
    y = g.linear(y, f"{name}.output", 4 * hidden, hidden, gain=0.4)
    return g.norm(g.node("Add", [y, x], f"{name}.sum"), f"{name}.norm", hidden)


def _gelu(g: BertGraph, x: str, name: str) -> str:
    """x / 2 * (1 + erf(x / sqrt(2)))."""
    g.node("Div", [x, "sqrt_two"], f"{name}.scaled")
    g.node("Erf", [f"{name}.scaled"], f"{name}.erf")
    g.node("Add", [f"{name}.erf", "one"], f"{name}.gate")
    g.node("Mul", [x, f"{name}.gate"], f"{name}.twice")
    return g.node("Mul", [f"{name}.twice", "half"], name)

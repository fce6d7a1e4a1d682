"""A small BERT with a question-answering head, node by node as torch exports it at opset 17."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


class Bert:
    """Builds the graph; weights are seeded, activations stay of order one."""

    def __init__(self, layers: int, heads: int, width: int, tokens: int, batch: int | str = 1, inner: int = 0) -> None:
        self.layers, self.heads, self.width, self.tokens, self.batch = layers, heads, width, tokens, batch
        self.inner = inner or 4 * width
        self.random = np.random.default_rng(3)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, NDArray[np.generic]] = {}

    def save(self, path: Path) -> Path:
        x = self._embed()
        bias = self._mask()
        for i in range(self.layers):
            x = self._block(x, bias, f"layer{i}")
        logits = self._dense(x, 2, "qa")
        sizes = self._constant(np.array([1, 1]))
        starts, ends = (f"{part}_logits" for part in ("start", "end"))
        self._node("Split", [logits, sizes], ["qa/0", "qa/1"], axis=-1)
        axis = self._constant(np.array([-1]))
        for i, name in enumerate((starts, ends)):
            self._node("Squeeze", [f"qa/{i}", axis], [name])
        ports = ("input_ids", "attention_mask", "token_type_ids")
        shape = [self.batch, self.tokens]
        graph = helper.make_graph(
            self.nodes,
            "bert",
            [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ports],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in (starts, ends)],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path

    def _embed(self) -> str:
        words = self._node("Gather", [self._weight(100, self.width), "input_ids"])
        kinds = self._node("Gather", [self._weight(2, self.width), "token_type_ids"])
        both = self._node("Add", [words, kinds])
        places = self._constant(np.arange(self.tokens)[None])
        positions = self._node("Gather", [self._weight(self.tokens, self.width), places])
        return self._norm(self._node("Add", [both, positions]), "embedding")

    def _mask(self) -> str:
        wide = self._node("Unsqueeze", ["attention_mask", self._constant(np.array([1, 2]))])
        real = self._node("Cast", [wide], to=TensorProto.FLOAT)
        off = self._node("Sub", [self._constant(np.float32(1)), real])
        return self._node("Mul", [off, self._constant(np.float32(-10000))])

    def _block(self, x: str, bias: str, name: str) -> str:
        each = self.width // self.heads
        split = self._constant(np.array([0, self.tokens, self.heads, each]))
        q, k, v = (self._dense(x, self.width, f"{name}/{part}", gain=2) for part in ("query", "key", "value"))
        k = self._node("Transpose", [self._node("Reshape", [k, split])], perm=[0, 2, 3, 1])
        v = self._node("Transpose", [self._node("Reshape", [v, split])], perm=[0, 2, 1, 3])
        q = self._node("Transpose", [self._node("Reshape", [q, split])], perm=[0, 2, 1, 3])
        scores = self._node("Div", [self._node("MatMul", [q, k]), self._constant(np.float32(each**0.5))])
        likely = self._node("Softmax", [self._node("Add", [scores, bias])], axis=-1)
        mixed = self._node("Transpose", [self._node("MatMul", [likely, v])], perm=[0, 2, 1, 3])
        merged = self._node("Reshape", [mixed, self._constant(np.array([0, self.tokens, self.width]))])
        x = self._norm(self._node("Add", [self._dense(merged, self.width, f"{name}/out"), x]), f"{name}/norm1")
        wide = self._dense(x, self.inner, f"{name}/inner")
        erf = self._node("Erf", [self._node("Div", [wide, self._constant(np.float32(2**0.5))])])
        gated = self._node("Mul", [wide, self._node("Add", [erf, self._constant(np.float32(1))])])
        gelu = self._node("Mul", [gated, self._constant(np.float32(0.5))])
        return self._norm(self._node("Add", [self._dense(gelu, self.width, f"{name}/outer"), x]), f"{name}/norm2")

    def _dense(self, x: str, width: int, name: str, gain: float = 1) -> str:
        depth = self.inner if name.endswith("outer") else self.width
        product = self._node("MatMul", [x, self._weight(depth, width, scale=gain / depth**0.5)], [f"{name}/matmul"])
        return self._node("Add", [self._weight(width, scale=0.1), product], [f"{name}/add"])

    def _norm(self, x: str, name: str) -> str:
        scale = self._constant((1 + 0.1 * self.random.standard_normal(self.width)).astype(np.float32))
        return self._node(
            "LayerNormalization", [x, scale, self._weight(self.width, scale=0.1)], [name], axis=-1, epsilon=1e-12
        )

    def _weight(self, *shape: int, scale: float = 1) -> str:
        return self._constant((scale * self.random.standard_normal(shape)).astype(np.float32))

    def _constant(self, array: NDArray[np.generic]) -> str:
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def _node(self, op: str, inputs: Sequence[str], outputs: Sequence[str] = (), **attributes: object) -> str:
        outputs = outputs or [f"{op.lower()}{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, inputs, outputs, **attributes))
        return outputs[0]

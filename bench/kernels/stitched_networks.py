"""Networks of the FusionStitching paper that the zoo has not: a Transformer's encoder and a CRNN, with random weights.

Their layer norms and softmaxes are single operators, and decomposed ones, as older exporters write them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 17


class NetworkWriter:
    """Collects nodes and weights; each method returns the name of what it makes. ::

    net = NetworkWriter()
    net.save(path, inputs={"x": (1, 8)}, outputs={net.dense("x", 8, 4): (1, 4)})
    """

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """The first output of a new node."""
        name = f"{kind.lower()}_{len(self._nodes)}"
        names = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name, **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"w_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weights(self, *shape: int, scale: float = 0.0) -> str:
        """Normal ones, by default scaled such that a product keeps the size of what it multiplies."""
        scale = scale or float(np.prod(shape[1:]) if len(shape) == 4 else shape[-2]) ** -0.5
        return self.constant((self._random.standard_normal(shape) * scale).astype(np.float32))

    def vector(self, width: int, at: float = 0.0) -> str:
        return self.constant((at + 0.1 * self._random.standard_normal(width)).astype(np.float32))

    def dense(self, x: str, width: int, outputs: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.weights(width, outputs)), self.vector(outputs))

    def layer_norm(self, x: str, width: int) -> str:
        """A layer norm of separate operators, as exporters write it before opset 17."""
        centred = self.node("Sub", x, self.node("ReduceMean", x, axes=[-1]))
        square = self.node("Pow", centred, self.constant(np.float32(2)))
        variance = self.node("ReduceMean", square, axes=[-1])
        spread = self.node("Sqrt", self.node("Add", variance, self.constant(np.float32(1e-5))))
        scaled = self.node("Mul", self.node("Div", centred, spread), self.vector(width, 1.0))
        return self.node("Add", scaled, self.vector(width))

    def save(self, path: Path, inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]]) -> None:
        infos = [
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in ports.items()]
            for ports in (inputs, outputs)
        ]
        graph = helper.make_graph(self._nodes, path.stem, *infos, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, path)


def write_transformer(path: Path, layers: int = 6, width: int = 512, heads: int = 8, length: int = 128) -> None:
    """The base model's encoder (Vaswani et al.): post-norm, ReLU, four times the width inside, from embedded tokens."""
    net, x, mask = NetworkWriter(), "x", "mask"
    shape = net.constant(np.array([1, length, heads, width // heads]))
    whole = net.constant(np.array([1, length, width]))
    for layer in range(layers):
        parts = [net.node("Reshape", net.dense(x, width, width), shape) for _ in range(3)]
        orders = [0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]
        q, k, v = (net.node("Transpose", part, perm=perm) for part, perm in zip(parts, orders, strict=True))
        scores = net.node("Mul", net.node("MatMul", q, k), net.constant(np.float32((width // heads) ** -0.5)))
        weights = net.node("Softmax", net.node("Add", scores, mask), axis=-1)
        mixed = net.node("Transpose", net.node("MatMul", weights, v), perm=[0, 2, 1, 3])
        x = net.node("Add", net.dense(net.node("Reshape", mixed, whole), width, width), x)
        norms: list[Callable[[str], str]] = [
            lambda y: net.layer_norm(y, width),
            lambda y: net.node("LayerNormalization", y, net.vector(width, 1.0), net.vector(width), axis=-1),
        ]
        x = norms[layer % 2](x)
        inner = net.node("Relu", net.dense(x, width, 4 * width))
        x = norms[layer % 2](net.node("Add", net.dense(inner, 4 * width, width), x))
    net.save(path, {"x": (1, length, width), "mask": (1, 1, 1, length)}, {x: (1, length, width)})


def write_crnn(path: Path, columns: int = 25, hidden: int = 256, letters: int = 37) -> None:
    """Shi et al.'s network for words in images of 32 rows: seven convolutions, two bidirectional LSTMs, log softmax."""
    net, x, channels = NetworkWriter(), "image", 1
    stack = ((64, 3, "22"), (128, 3, "22"), (256, 3, ""), (256, 3, "21"), (512, 3, ""), (512, 3, "21"), (512, 2, ""))
    for i, (outputs, side, pool) in enumerate(stack):
        pad = [1, 1, 1, 1] if side == 3 else [0, 0, 0, 0]
        x = net.node("Conv", x, net.weights(outputs, channels, side, side), net.vector(outputs), pads=pad)
        if i in (2, 4, 6):
            spread = net.constant(np.full(outputs, 1.1, np.float32))
            mean = net.vector(outputs)
            x = net.node("BatchNormalization", x, net.vector(outputs, 1.0), net.vector(outputs), mean, spread)
        x = net.node("Relu", x)
        if pool:
            steps = [2, int(pool[1])]
            x = net.node("MaxPool", x, kernel_shape=steps, strides=steps)
        channels = outputs
    steps = columns - 1  # the last convolution has no padding
    x = net.node("Transpose", net.node("Squeeze", x, net.constant(np.array([2]))), perm=[2, 0, 1])
    width = channels
    for _ in range(2):
        w, r = net.weights(2, 4 * hidden, width, scale=width**-0.5), net.weights(2, 4 * hidden, hidden, scale=0.06)
        bias = net.constant(np.zeros((2, 8 * hidden), np.float32))
        both = net.node("LSTM", x, w, r, bias, hidden_size=hidden, direction="bidirectional")
        x = net.node("Reshape", net.node("Transpose", both, perm=[0, 2, 1, 3]), net.constant([steps, 1, 2 * hidden]))
        width = 2 * hidden
    x = net.node("LogSoftmax", net.dense(x, width, letters), axis=-1)
    net.save(path, {"image": (1, 1, 32, 4 * columns)}, {x: (steps, 1, letters)})


NETWORKS: Mapping[str, Callable[[Path], None]] = {"transformer": write_transformer, "crnn": write_crnn}

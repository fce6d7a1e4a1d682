"""Writes convolutional graphs as exporters do (Conv, BatchNormalization, activation) around seeded weights.

Random weights alone make a net whose activations explode, die, or hardly depend on the input. Each value therefore
carries its expected mean and variance per channel, propagated in closed form for Gaussian activations, and each
BatchNormalization gets the statistics that its input really has, as a trained net's running averages would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 8
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph: its name and what each channel is expected to hold over images and pixels."""

    name: str
    mean: Floats  # (channels,)
    var: Floats  # (channels,)

    @property
    def channels(self) -> int:
        return len(self.mean)


@dataclass(slots=True)
class ConvGraph:
    """Appends nodes; `parameters` counts what a trainer would learn (weights, biases, batch-norm affine)."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    parameters: int = 0

    def image(self, name: str, channels: int) -> Value:
        """The graph's input, normalised as for ImageNet: mean 0, variance 1."""
        return Value(name, np.zeros(channels), np.ones(channels))

    def conv_norm(
        self, x: Value, name: str, out: int, kernel: int, stride: int = 1, groups: int = 1, gain: float = 1.0
    ) -> Value:
        """Square convolution without bias, then batch norm. gain: centre of the norm's scale."""
        width = x.channels // groups
        shape = (out, width, kernel, kernel)
        weight = self.rng.standard_normal(shape, dtype=np.float32)
        weight *= np.float32(math.sqrt(2 / (width * kernel * kernel)))
        if groups == 1:
            # Filters that sum to zero over the input channels (weight standardisation) do not pass on a shift that
            # all rectified channels share; without it the errors of the expected means grow from block to block.
            weight -= weight.mean(axis=1, keepdims=True)
        taps = weight.astype(np.float64).reshape(out, width, kernel * kernel)
        source = np.arange(out) // (out // groups)  # group of each output channel
        mean = np.einsum("ock,oc->o", taps, x.mean.reshape(groups, width)[source])
        var = np.einsum("ock,oc->o", taps**2, x.var.reshape(groups, width)[source])
        pad = kernel // 2
        self._node("Conv", [x.name, self._learned(f"{name}.weight", weight)], f"{name}.conv",
                   kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, group=groups)  # fmt: skip
        scale = gain * self.rng.uniform(0.8, 1.2, out)
        shift = 0.1 * gain * self.rng.standard_normal(out)
        inputs = [
            f"{name}.conv",
            self._learned(f"{name}.norm.weight", scale),
            self._learned(f"{name}.norm.bias", shift),
            self.constant(f"{name}.norm.running_mean", mean.astype(np.float32)),
            self.constant(f"{name}.norm.running_var", var.astype(np.float32)),
        ]
        self._node("BatchNormalization", inputs, f"{name}.norm", epsilon=1e-5)
        return Value(f"{name}.norm", shift, scale**2)

    def relu(self, x: Value, name: str) -> Value:
        self._node("Relu", [x.name], name)
        return _rectified(x, name)

    def relu6(self, x: Value, name: str) -> Value:
        """Clip to 0 … 6, as ReLU6 is exported. The cut at 6 is some five deviations out: its moments are Relu's."""
        bounds = {"clip.min": 0.0, "clip.max": 6.0}
        known = {tensor.name for tensor in self.initializers}
        for bound, value in bounds.items():
            if bound not in known:
                self.constant(bound, np.array(value, np.float32))
        self._node("Clip", [x.name, *bounds], name)
        return _rectified(x, name)

    def add(self, x: Value, y: Value, name: str) -> Value:
        self._node("Add", [x.name, y.name], name)
        return Value(name, x.mean + y.mean, x.var + y.var)

    def add_relu(self, stream: Value, y: Value, name: str) -> Value:
        """relu(stream + y) of a rectified stream, taken as zero or one value v, with the same two moments."""
        square = stream.mean**2 + stream.var
        v, share = square / stream.mean, stream.mean**2 / square
        self._node("Add", [stream.name, y.name], f"{name}.sum")
        self._node("Relu", [f"{name}.sum"], f"{name}.relu")
        low, high = _rectified(y, name), _rectified(Value(name, y.mean + v, y.var), name)
        mean = (1 - share) * low.mean + share * high.mean
        second = (1 - share) * (low.var + low.mean**2) + share * (high.var + high.mean**2)
        return Value(f"{name}.relu", mean, second - mean**2)

    def max_pool(self, x: Value, name: str) -> Value:
        """3x3, stride 2, of a rectified value: the largest of nine independent normals has mean 1.485 and variance
        0.357, where one rectified normal has variance 0.341."""
        self._node("MaxPool", [x.name], name, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        return Value(name, 1.485 * np.sqrt(x.var / 0.341), x.var * (0.357 / 0.341))

    def classify(self, x: Value, name: str, classes: int) -> str:
        """Global average pool, flatten, fully connected with bias; the name of the logits (n, classes)."""
        self._node("GlobalAveragePool", [x.name], f"{name}.pool")
        self._node("Flatten", [f"{name}.pool"], f"{name}.flat", axis=1)
        weight = self.rng.standard_normal((classes, x.channels), dtype=np.float32)
        # Logits of about one. What all images share is left in: taking it out would magnify what is left, and with it
        # every rounding error, far beyond what a trained net shows.
        weight *= np.float32(1 / math.sqrt(float(np.sum(x.mean**2 + x.var))))
        bias = 0.1 * self.rng.standard_normal(classes)
        inputs = [f"{name}.flat", self._learned(f"{name}.weight", weight), self._learned(f"{name}.bias", bias)]
        self._node("Gemm", inputs, "logits", transB=1)
        return "logits"

    def constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        """An initializer that is not learned: running statistics, bounds."""
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def _learned(self, name: str, value: npt.NDArray[np.generic]) -> str:
        self.parameters += value.size
        return self.constant(name, value.astype(np.float32, copy=False))

    def _node(self, op: str, inputs: Sequence[str], output: str, **attributes: object) -> None:
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"/{output}", **attributes))


def image_model(name: str, graph: ConvGraph, logits: str, qos_ms: int, size: int = 224) -> onnx.ModelProto:
    """A classifier of one image: input float32 (1, 3, size, size), output logits float32 (1, 1000)."""
    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, size, size])]
    outputs = [helper.make_tensor_value_info(logits, TensorProto.FLOAT, [1, 1000])]
    return model(helper.make_graph(graph.nodes, name, inputs, outputs, graph.initializers), {"qos_ms": qos_ms})


def model(graph: onnx.GraphProto, properties: dict[str, int]) -> onnx.ModelProto:
    """The graph as a model of `OPSET`; properties become `veltair.<key>` in its metadata."""
    opset = [helper.make_opsetid("", OPSET)]
    proto = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="veltair")
    helper.set_model_props(proto, {f"veltair.{key}": str(value) for key, value in properties.items()})
    return proto


def _rectified(x: Value, name: str) -> Value:
    """Mean and variance of max(0, x) for Gaussian channels."""
    sigma = np.sqrt(x.var)
    ratio = x.mean / sigma
    below = np.array([0.5 * math.erfc(-r / math.sqrt(2)) for r in ratio])  # standard normal distribution
    density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    mean = x.mean * below + sigma * density
    square = (x.mean**2 + x.var) * below + x.mean * sigma * density
    return Value(name, mean, square - mean**2)

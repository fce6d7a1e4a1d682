"""Writes convolutional graphs with seeded weights in the form of exporters: Conv, BatchNormalization, activation.

Each tensor carries its expected moments, and each BatchNormalization gets the true statistics of its input, as the
running averages of a trained network would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from veltair.zoo import moments
from veltair.zoo.moments import Floats, TensorMoments
from veltair.zoo.onnx_writer import OnnxWriter

OPSET, IR_VERSION = 17, 8
Weights = npt.NDArray[np.float32]
# The mean of a channel over one image is assumed to vary between images by this share of the channel's deviation.
POOLED_DEVIATION = 0.7

# In a network without shortcuts, or with gates, differences between two inputs grow by half from one activation to the
# next, and rounding errors with them. A trained network does not do that, nor does one whose activations let most
# values pass.
PLAIN_LIFT = 1.0


@dataclass(slots=True)
class ConvGraph(OnnxWriter):
    """A convolutional graph; each method appends nodes and returns their result with its moments.

    >>> graph = ConvGraph(np.random.default_rng(0))
    >>> graph.relu(graph.conv(graph.image("input", 3), "conv", out=8, kernel=3), "relu").channels
    8
    """

    def image(self, name: str, channels: int) -> TensorMoments:
        """Returns the graph's input, normalised as for ImageNet: mean 0, variance 1."""
        return TensorMoments(name, np.zeros(channels), np.ones(channels))

    def conv_norm(
        self,
        x: TensorMoments,
        name: str,
        out: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        gain: float = 1.0,
        pads: Sequence[int] | None = None,
        epsilon: float = 1e-5,
        lift: float = 0.0,
    ) -> TensorMoments:
        """Appends a square convolution without bias and a batch norm.

        gain: centre of the norm's scale; lift: centre of its shift, in gains; pads: (top, left, bottom, right), or half
        the kernel when None.
        """
        weight, mean, var = self._filters(x, out, kernel, groups)
        self._conv([x.name, self.constant(f"{name}.weight", weight)], f"{name}.conv", kernel, stride, pads, 1, groups)
        scale, shift = self._affine(out, gain, lift)
        inputs = [
            f"{name}.conv",
            self.constant(f"{name}.norm.weight", scale.astype(np.float32)),
            self.constant(f"{name}.norm.bias", shift.astype(np.float32)),
            self.constant(f"{name}.norm.running_mean", mean.astype(np.float32)),
            self.constant(f"{name}.norm.running_var", var.astype(np.float32)),
        ]
        self.node("BatchNormalization", inputs, f"{name}.norm", epsilon=epsilon)
        return TensorMoments(f"{name}.norm", shift, scale**2)

    def conv(
        self,
        x: TensorMoments,
        name: str,
        out: int,
        kernel: int,
        stride: int = 1,
        gain: float = 1.0,
        pads: Sequence[int] | None = None,
        dilation: int = 1,
        lift: float = 0.0,
    ) -> TensorMoments:
        """Appends a square convolution with bias; channels have means about lift * gain and deviations about gain."""
        weight, mean, var = self._filters(x, out, kernel, 1)
        scale, shift = self._affine(out, gain, lift)
        weight *= (scale / np.sqrt(var)).astype(np.float32)[:, None, None, None]
        bias = shift - mean * scale / np.sqrt(var)
        inputs = [x.name, self.constant(f"{name}.weight", weight), self.constant(f"{name}.bias", bias.astype("f4"))]
        self._conv(inputs, name, kernel, stride, pads, dilation, 1)
        return TensorMoments(name, shift, scale**2)

    def _filters(self, x: TensorMoments, out: int, kernel: int, groups: int) -> tuple[Weights, Floats, Floats]:
        """Returns filters (out, channels / groups, kernel, kernel), and mean and variance (out,) of their results."""
        width = x.channels // groups
        weight = self.rng.standard_normal((out, width, kernel, kernel), dtype=np.float32)
        weight *= np.float32(math.sqrt(2 / (width * kernel * kernel)))
        if groups == 1:
            # Filters that sum to zero over the input channels (weight standardisation) do not pass on a shift that
            # all rectified channels share; without it the errors of the expected means grow from block to block.
            weight -= weight.mean(axis=1, keepdims=True)
        taps = weight.astype(np.float64).reshape(out, width, kernel * kernel)
        source = np.arange(out) // (out // groups)  # group of each output channel
        mean = np.einsum("ock,oc->o", taps, x.mean.reshape(groups, width)[source])
        var = np.einsum("ock,oc->o", taps**2, x.var.reshape(groups, width)[source])
        return weight, mean, var

    def _affine(self, channels: int, gain: float, lift: float) -> tuple[Floats, Floats]:
        """Returns scale and shift (channels,) like those of a trained norm."""
        scale = gain * self.rng.uniform(0.8, 1.2, channels)
        return scale, gain * (lift + 0.1 * self.rng.standard_normal(channels))

    def _conv(
        self,
        inputs: list[str],
        output: str,
        kernel: int,
        stride: int,
        pads: Sequence[int] | None,
        dilation: int,
        groups: int,
    ) -> None:
        pads = [dilation * (kernel // 2)] * 4 if pads is None else pads
        dilated = {} if dilation == 1 else {"dilations": [dilation] * 2}
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": list(pads), "group": groups}
        self.node("Conv", inputs, output, **attributes, **dilated)

    def relu(self, x: TensorMoments, name: str) -> TensorMoments:
        self.node("Relu", [x.name], name)
        return moments.relu_moments(x, name)

    def relu6(self, x: TensorMoments, name: str) -> TensorMoments:
        """Appends a Clip to 0 … 6, as ReLU6 is exported; 6 is five deviations away, so the moments are Relu's."""
        bounds = {"clip.min": 0.0, "clip.max": 6.0}
        known = {tensor.name for tensor in self.initializers}
        for bound, value in bounds.items():
            if bound not in known:
                self.constant(bound, np.array(value, np.float32))
        self.node("Clip", [x.name, *bounds], name)
        return moments.relu_moments(x, name)

    def leaky_relu(self, x: TensorMoments, name: str, slope: float) -> TensorMoments:
        self.node("LeakyRelu", [x.name], name, alpha=slope)
        return moments.leaky_relu_moments(x, name, slope)

    def silu(self, x: TensorMoments, name: str) -> TensorMoments:
        """Appends Sigmoid and Mul, because ONNX has no SiLU."""
        self.node("Sigmoid", [x.name], f"{name}.sigmoid")
        self.node("Mul", [x.name, f"{name}.sigmoid"], name)
        return moments.silu_moments(x, name)

    def squeeze_excite(self, x: TensorMoments, name: str, squeezed: int) -> TensorMoments:
        """Multiplies x by a gate per channel, computed from its averages by two 1x1 convolutions (Hu et al. 2018)."""
        self.node("GlobalAveragePool", [x.name], f"{name}.pool")
        pooled = TensorMoments(f"{name}.pool", x.mean, x.var * POOLED_DEVIATION**2)
        y = self.silu(self.conv(pooled, f"{name}.squeeze", squeezed, 1), f"{name}.silu")
        y = self.conv(y, f"{name}.excite", x.channels, 1)
        self.node("Sigmoid", [y.name], f"{name}.gate")
        self.node("Mul", [f"{name}.gate", x.name], name)
        return moments.product_moments(x, moments.sigmoid_moments(y, ""), name)

    def add(self, x: TensorMoments, y: TensorMoments, name: str) -> TensorMoments:
        self.node("Add", [x.name, y.name], name)
        return TensorMoments(name, x.mean + y.mean, x.var + y.var)

    def add_relu(self, stream: TensorMoments, y: TensorMoments, name: str) -> TensorMoments:
        """Appends relu(stream + y); its moments take the rectified stream as 0 or one value v with the same moments."""
        v, share = stream.square / stream.mean, stream.mean**2 / stream.square
        self.node("Add", [stream.name, y.name], f"{name}.sum")
        self.node("Relu", [f"{name}.sum"], f"{name}.relu")
        low, high = moments.relu_moments(y, name), moments.relu_moments(TensorMoments(name, y.mean + v, y.var), name)
        mean = (1 - share) * low.mean + share * high.mean
        square = (1 - share) * low.square + share * high.square
        return TensorMoments(f"{name}.relu", mean, square - mean**2)

    def concat(self, values: Sequence[TensorMoments], name: str) -> TensorMoments:
        self.node("Concat", [v.name for v in values], name, axis=1)
        return moments.concat_moments(values, name)

    def max_pool(
        self,
        x: TensorMoments,
        name: str,
        kernel: int,
        stride: int,
        pads: Sequence[int] = (0, 0, 0, 0),
        ceil: bool = False,
    ) -> TensorMoments:
        """Appends max pooling of a rectified value. ceil: the last window may hang over the edge."""
        rounding = {"ceil_mode": 1} if ceil else {}
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": list(pads)}
        self.node("MaxPool", [x.name], name, **attributes, **rounding)
        return moments.max_moments(x, name, kernel * kernel)

    def classify(self, x: TensorMoments, name: str, classes: int) -> str:
        """Appends average pooling and a dense layer with bias; returns the name of the logits (n, classes)."""
        self.node("GlobalAveragePool", [x.name], f"{name}.pool")
        self.node("Flatten", [f"{name}.pool"], f"{name}.flat", axis=1)
        weight = self.rng.standard_normal((classes, x.channels), dtype=np.float32)
        # Logits of about one. The part that all images share stays in: without it the rest would have to be magnified,
        # and with it every rounding error, far beyond those of a trained network.
        weight *= np.float32(1 / math.sqrt(float(np.sum(x.square))))
        bias = 0.1 * self.rng.standard_normal(classes)
        inputs = [
            f"{name}.flat",
            self.constant(f"{name}.weight", weight),
            self.constant(f"{name}.bias", bias.astype(np.float32)),
        ]
        self.node("Gemm", inputs, "logits", transB=1)
        return "logits"


def image_model(
    name: str, graph: ConvGraph, outputs: Mapping[str, Sequence[int]], qos_ms: int, size: int = 224
) -> onnx.ModelProto:
    """Returns a model of one image: input float32 (1, 3, size, size); outputs float32 by name with these shapes."""
    floats = [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(shape)) for n, shape in outputs.items()]
    image = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, size, size])
    return model(helper.make_graph(graph.nodes, name, [image], floats, graph.initializers), {"qos_ms": qos_ms})


def model(graph: onnx.GraphProto, properties: Mapping[str, int]) -> onnx.ModelProto:
    """Returns the graph as a model of `OPSET`; properties become `veltair.<key>` in its metadata."""
    opset = [helper.make_opsetid("", OPSET)]
    proto = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="veltair")
    helper.set_model_props(proto, {f"veltair.{key}": str(value) for key, value in properties.items()})
    return proto

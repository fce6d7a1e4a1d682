"""Arithmetic of references by means that share nothing with our kernels: activations, bfloat16, single ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

Array = NDArray[Any]


def bf16_to_float32(bits: Array) -> Array:
    """The floats whose upper halves are `bits`. Exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bf16(value: Array) -> Array:
    """Round to nearest, ties to even, and keep the upper half of the bits."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def apply_activation(value: Array, activation: str) -> Array:
    """The activation function that a layer's parameters name, in double precision."""
    kind, *numbers = activation.split(":")
    parameters = [float(number) for number in numbers]
    wide = value.astype(np.float64)
    if kind.startswith("gated-"):
        result = wide * apply_activation(value, activation.removeprefix("gated-"))
    elif kind == "relu":
        result = np.maximum(wide, 0)
    elif kind == "clip":
        low, high = parameters
        result = np.clip(wide, low, high)
    elif kind == "leaky":
        result = np.where(wide < 0, wide * parameters[0], wide)
    elif kind == "elu":
        result = np.where(wide < 0, np.expm1(np.minimum(wide, 0)) * parameters[0], wide)
    elif kind == "sigmoid":
        result = 1 / (1 + np.exp(-wide))
    elif kind == "hardsigmoid":
        result = np.clip(wide * parameters[0] + parameters[1], 0, 1)
    elif kind == "tanh":
        result = np.tanh(wide)
    elif kind == "gelu-tanh":
        result = wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))) / 2
    elif kind == "gelu":
        result = wide * (1 + run_onnx_node("Erf", [np.asarray(value / np.sqrt(2), np.float32)])) / 2
    else:
        return value
    return np.asarray(result, np.float32)


def run_onnx_node(op: str, inputs: Sequence[Array], **attributes: Any) -> Array:
    """The output of one node of float32 in ONNX Runtime."""
    names = [f"x{i}" for i in range(len(inputs))]
    floats = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, names, ["y"], **attributes)],
        "reference",
        [onnx.helper.make_tensor_value_info(n, floats, x.shape) for n, x in zip(names, inputs, strict=True)],
        [onnx.helper.make_tensor_value_info("y", floats, None)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    result: Array = session.run(None, dict(zip(names, map(np.ascontiguousarray, inputs), strict=True)))[0]
    return result

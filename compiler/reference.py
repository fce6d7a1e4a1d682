"""What a layer must give, by means that share nothing with our kernels: numpy, and ONNX Runtime for windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from veltair.compiler.ir import Activation, LayerSpec

Array = NDArray[Any]


def reference(spec: LayerSpec, inputs: Sequence[Array]) -> list[Array] | None:
    """Outputs in physical layout for inputs in physical layout, in fp32 arithmetic.

    None for a generic layer: it has one version, which the whole model is checked with.
    """
    if spec.op == "generic":
        return None
    values = [unpacked(tensor, array) for tensor, array in zip(spec.inputs, inputs, strict=True)]
    return [packed(tensor, result) for tensor, result in zip(spec.outputs, _logical(spec, values), strict=True)]


def unpacked(tensor: Activation, physical: Array) -> Array:
    """The ONNX tensor inside a physical one, bfloat16 bits as fp32."""
    if not tensor.block:
        return physical
    halo, (_, c, h, w) = tensor.halo, tensor.shape
    inside = physical[:, :, halo.top : halo.top + h, halo.left : halo.left + w]
    if tensor.dtype == "uint16":
        inside = (inside.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(inside.transpose(0, 1, 4, 2, 3).reshape(len(physical), -1, h, w)[:, :c])


def packed(tensor: Activation, value: Array) -> Array:
    """The physical tensor of an ONNX one: zeros around it and behind its channels."""
    if not tensor.block:
        return np.ascontiguousarray(value, np.dtype(tensor.dtype)).reshape(value.shape)
    n, c, h, w = value.shape
    if tensor.dtype == "uint16":
        value = _bf16_bits(value)
    out = np.zeros((n, *tensor.physical[1:]), tensor.dtype)
    padded = np.pad(value, [(0, 0), (0, -c % tensor.block), (0, 0), (0, 0)])
    inside = padded.reshape(n, -1, tensor.block, h, w).transpose(0, 1, 3, 4, 2)
    out[:, :, tensor.halo.top : tensor.halo.top + h, tensor.halo.left : tensor.halo.left + w] = inside
    return out


def _logical(spec: LayerSpec, x: list[Array]) -> list[Array]:
    a = spec.attributes
    if spec.op in ("conv2d", "conv2d_amx", "depthwise_conv2d"):
        group = x[0].shape[1] if spec.op == "depthwise_conv2d" else 1
        y = _onnx(
            "Conv", [x[0], _weight(spec), spec.weights["bias"]],
            strides=a["strides"], pads=a["pads"], dilations=a["dilations"], group=group,
        )  # fmt: skip
        return [_activate(y + x[1] if len(x) > 1 else y, a["activation"])]
    if spec.op == "matmul":
        product = x[0].astype(np.float64) @ _weight(spec).astype(np.float64) + spec.weights["bias"]
        return [_activate(product.astype(np.float32), a["activation"])]
    if spec.op == "embedding_bag":
        reduce = np.mean if a["reduce"] == "mean" else np.sum
        return [np.asarray(reduce(spec.weights[f"table{i}"][ids], axis=1, dtype=np.float64)) for i, ids in enumerate(x)]
    if spec.op == "pool2d":
        windows = {"kernel_shape": a["kernel"], "strides": a["strides"], "pads": a["pads"]}
        if a["kind"] == "max":
            return [_onnx("MaxPool", x, **windows)]
        return [_onnx("AveragePool", x, count_include_pad=a["count_include_pad"], **windows)]
    if spec.op == "global_average_pool":
        return [x[0].mean((2, 3), keepdims=True, dtype=np.float64)]
    if spec.op == "elementwise":
        return [_steps(spec, x)]
    if spec.op == "concat":
        return [np.concatenate(x, axis=1)]
    return [x[0].reshape(x[0].shape)]  # to_blocked, to_plain, copy: the layout is all that changes


def _weight(spec: LayerSpec) -> Array:
    """The weights as the kernel holds them: rounded where they are stored as bfloat16."""
    weight = np.ascontiguousarray(spec.weights["weight"], np.float32)
    if spec.op != "conv2d_amx" and spec.attributes.get("storage") != "bf16":
        return weight
    return (_bf16_bits(weight).astype(np.uint32) << 16).view(np.float32)


def _bf16_bits(value: Array) -> Array:
    """Round to nearest even and keep the upper half."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _steps(spec: LayerSpec, x: list[Array]) -> Array:
    value = x[0]
    for step in spec.attributes["steps"]:
        kind, _, argument = step.partition(":")
        if kind == "add":
            value = value + x[int(argument)]
        elif kind == "mul":
            value = value * x[int(argument)]
        elif kind == "affine":
            scale, shift = (spec.weights[k][None, :, None, None] for k in ("scale", "shift"))
            value = value * scale + shift
        else:
            value = _activate(value, step)
    return value


def _activate(value: Array, activation: str) -> Array:
    kind, *bounds = activation.split(":")
    if kind == "relu":
        return np.maximum(value, 0)
    if kind == "clip":
        low, high = (np.float32(bound) for bound in bounds)
        return np.asarray(np.clip(value, low, high))
    if kind == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-value.astype(np.float64))), np.float32)
    return value


def _onnx(op: str, inputs: Sequence[Array], **attributes: Any) -> Array:
    """One node in ONNX Runtime."""
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

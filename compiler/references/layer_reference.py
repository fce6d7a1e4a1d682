"""The outputs a layer must compute, by code independent of our kernels: numpy, and ONNX Runtime for windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.features import feature_reference as columns
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.vision import (
    Conv2dParameters,
    ElementwiseParameters,
    GroupNormParameters,
    L2NormalizeParameters,
    LrnParameters,
    Pool2dParameters,
    PoolKind,
    ResizeParameters,
    SqueezeExciteParameters,
)
from veltair.compiler.references.quantised_reference import QUANTISED_REFERENCES
from veltair.compiler.references.reference_arithmetic import (
    apply_activation,
    bf16_to_float32,
    float32_to_bf16,
    run_onnx_node,
)
from veltair.compiler.references.row_reference import ROW_REFERENCES
from veltair.compiler.stitch.operators.evaluate import reference_stitched

Array = NDArray[Any]


def reference_outputs(spec: LayerSpec, inputs: Sequence[Array], batch: int = 1) -> list[Array] | None:
    """Compute a layer's outputs from its inputs, both in physical layout, in fp32 arithmetic.

    None for a generic layer, and one that ONNX Runtime runs: it has one version, which the comparison of the whole
    model covers.
    """
    if spec.op in ("generic", "onnxruntime"):
        return None
    if spec.op == "constant_rows":  # no input says how large the batch is
        table = spec.weights["table"]
        return [table[np.arange(spec.outputs[0].at(batch)[0]) % len(table)]]
    values = [unpack_activation(tensor, array) for tensor, array in zip(spec.inputs, inputs, strict=True)]
    return [
        pack_activation(tensor, result) for tensor, result in zip(spec.outputs, _logical(spec, values), strict=True)
    ]


def unpack_activation(tensor: Activation, physical: Array) -> Array:
    """The ONNX tensor that a physical array stores; bfloat16 bits become fp32."""
    if not tensor.block:
        return bf16_to_float32(physical) if tensor.dtype == "uint16" else physical
    halo, (_, c, h, w) = tensor.halo, tensor.shape
    inside = physical[:, :, halo.top : halo.top + h, halo.left : halo.left + w]
    if tensor.dtype == "uint16":
        inside = bf16_to_float32(inside)
    return np.ascontiguousarray(inside.transpose(0, 1, 4, 2, 3).reshape(len(physical), -1, h, w)[:, :c])


def pack_activation(tensor: Activation, value: Array) -> Array:
    """The physical array of an ONNX tensor: its halo and padding channels are zeros."""
    if not tensor.block:
        if tensor.dtype == "uint16":
            value = float32_to_bf16(value)
        return np.ascontiguousarray(value, np.dtype(tensor.dtype)).reshape(value.shape)
    n, c, h, w = value.shape
    if tensor.dtype == "uint16":
        value = float32_to_bf16(value)
    out = np.zeros((n, *tensor.physical[1:]), tensor.dtype)
    padded = np.pad(value, [(0, 0), (0, -c % tensor.block), (0, 0), (0, 0)])
    inside = padded.reshape(n, -1, tensor.block, h, w).transpose(0, 1, 3, 4, 2)
    out[:, :, tensor.halo.top : tensor.halo.top + h, tensor.halo.left : tensor.halo.left + w] = inside
    return out


def _logical(spec: LayerSpec, x: list[Array]) -> list[Array]:
    if spec.op in ROW_REFERENCES:
        return ROW_REFERENCES[spec.op](spec, x)
    if spec.op in QUANTISED_REFERENCES:
        return QUANTISED_REFERENCES[spec.op](spec, x)
    if spec.op == "columns":
        return [columns.reference_layer(spec, x)]
    if spec.op in ("conv2d", "conv2d_bf16", "depthwise_conv2d"):
        return [_convolution(spec, x)]
    if spec.op == "pool2d":
        pool = spec.parameters_as(Pool2dParameters)
        windows = {"kernel_shape": pool.kernel, "strides": pool.strides, "pads": pool.pads}
        if pool.kind == PoolKind.MAXIMUM:
            return [run_onnx_node("MaxPool", x, **windows)]
        return [run_onnx_node("AveragePool", x, count_include_pad=pool.count_include_pad, **windows)]
    if spec.op == "global_average_pool":
        return [x[0].mean((2, 3), keepdims=True, dtype=np.float64)]
    if spec.op == "squeeze_excite":
        return [_squeeze_excite(spec, x[0])]
    if spec.op == "elementwise":
        return [_steps(spec, x)]
    if spec.op == "stitched":
        return reference_stitched(spec, x)
    if spec.op in ("concat", "concat_rows"):
        return [np.concatenate(x, axis=1)]
    if spec.op == "transpose":
        return [x[0].swapaxes(1, 2)]
    if spec.op == "group_norm":
        return [_group_norm(spec, x)]
    if spec.op == "lrn":
        lrn = spec.parameters_as(LrnParameters)
        return [run_onnx_node("LRN", x, beta=0.75, size=lrn.size, alpha=lrn.alpha, bias=lrn.bias)]
    if spec.op == "l2_normalize":
        length = np.sqrt((x[0].astype(np.float64) ** 2).sum(1, keepdims=True))
        length = np.maximum(length, spec.parameters_as(L2NormalizeParameters).least)
        return [(x[0] / length * spec.weights["scale"][:, None, None]).astype(np.float32)]
    if spec.op == "channels_first":
        return [x[0].transpose(0, 3, 1, 2)]
    if spec.op == "channels_last":
        return [x[0].transpose(0, 2, 3, 1)]
    if spec.op == "pick_pixels":
        return [x[0][:, :, spec.weights["rows"]][:, :, :, spec.weights["columns"]]]
    if spec.op == "resize":
        return [_resized(spec, x)]
    if spec.op == "depth_to_space":
        _, channels, height, width = spec.outputs[0].shape
        size = math.isqrt(x[0].shape[1] // channels)
        moved = run_onnx_node("DepthToSpace", [x[0].astype(np.float32)], blocksize=size)
        return [moved[:, :, :height, :width].astype(x[0].dtype)]
    return [x[0].reshape(x[0].shape)]  # to_blocked, to_plain, copy: the layout is all that changes


def _group_norm(spec: LayerSpec, x: list[Array]) -> Array:
    """activation(scale * (x - mean) / deviation + shift [+ residual])."""
    norm = spec.parameters_as(GroupNormParameters)
    rows = x[0].reshape(len(x[0]), norm.groups, -1).astype(np.float64)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + norm.epsilon)
    scale, shift = (spec.weights[name][:, None, None] for name in ("scale", "shift"))
    y = normal.reshape(x[0].shape) * scale + shift
    return apply_activation((y + x[1] if len(x) > 1 else y).astype(np.float32), norm.activation)


def _resized(spec: LayerSpec, x: list[Array]) -> Array:
    """activation(x between two rows and two columns [+ residual])."""
    y, weights = x[0], spec.weights
    for axis, names in ((2, ("above", "below", "down")), (3, ("left", "right", "across"))):
        first, second, share = (weights[name] for name in names)
        begin, end = (np.take(y, places, axis) for places in (first, second))
        y = begin + (end - begin) * (share[:, None] if axis == 2 else share)
    return apply_activation(y + x[1] if len(x) > 1 else y, spec.parameters_as(ResizeParameters).activation)


def _convolution(spec: LayerSpec, x: list[Array]) -> Array:
    """pool(activation(conv(x) + bias [+ residual]))."""
    conv = spec.parameters_as(Conv2dParameters)
    group = x[0].shape[1] if spec.op == "depthwise_conv2d" else conv.groups
    inputs = [x[0], _weight(spec), spec.weights["bias"]]
    y = run_onnx_node("Conv", inputs, strides=conv.strides, pads=conv.pads, dilations=conv.dilations, group=group)
    if conv.shuffled:
        y = y.reshape(len(y), group, -1, *y.shape[2:]).swapaxes(1, 2).reshape(y.shape)
    y = apply_activation(y + x[1] if len(x) > 1 else y, conv.activation)
    if conv.pooled:
        ceil = any(2 * n > size for n, size in zip(spec.outputs[0].shape[2:], conv.pooled, strict=True))
        y = run_onnx_node("MaxPool", [y], kernel_shape=(2, 2), strides=(2, 2), ceil_mode=int(ceil))
    return y


def _weight(spec: LayerSpec) -> Array:
    """The weights as the kernel holds them: rounded where it multiplies bfloat16."""
    weight = np.ascontiguousarray(spec.weights["weight"], np.float32)
    return bf16_to_float32(float32_to_bf16(weight)) if spec.op == "conv2d_bf16" else weight


def _squeeze_excite(spec: LayerSpec, x: Array) -> Array:
    functions = spec.parameters_as(SqueezeExciteParameters)
    value = x.mean((2, 3), dtype=np.float64)
    for role, function in (("squeeze", functions.hidden), ("excite", functions.gate)):
        weight = spec.weights[role]
        if spec.inputs[0].dtype != "float32":
            weight = bf16_to_float32(float32_to_bf16(weight))
        value = value @ weight.T.astype(np.float64) + spec.weights[f"{role}_bias"]
        value = apply_activation(value.astype(np.float32), function)
    return apply_activation(x * value[:, :, None, None], functions.activation)


def _steps(spec: LayerSpec, x: list[Array]) -> Array:
    value = x[0]
    for step in spec.parameters_as(ElementwiseParameters).steps:
        kind, _, argument = step.partition(":")
        if kind == "add":
            value = value + x[int(argument)]
        elif kind == "mul":
            value = value * x[int(argument)]
        elif kind == "affine":
            scale, shift = (spec.weights[k][None, :, None, None] for k in ("scale", "shift"))
            value = value * scale + shift
        else:
            value = apply_activation(value, step)
    return value

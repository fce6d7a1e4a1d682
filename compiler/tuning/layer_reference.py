"""What a layer must give, by means that share nothing with our kernels: numpy, and ONNX Runtime for windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from veltair.compiler.embedding import family_reference as embedding
from veltair.compiler.features import feature_reference as columns
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.vision import (
    Conv2dParameters,
    ElementwiseParameters,
    L2NormalizeParameters,
    LrnParameters,
    Pool2dParameters,
    PoolKind,
    SqueezeExciteParameters,
)
from veltair.compiler.stitch.evaluate import reference_stitched

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
        return _widened(physical) if tensor.dtype == "uint16" else physical
    halo, (_, c, h, w) = tensor.halo, tensor.shape
    inside = physical[:, :, halo.top : halo.top + h, halo.left : halo.left + w]
    if tensor.dtype == "uint16":
        inside = (inside.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(inside.transpose(0, 1, 4, 2, 3).reshape(len(physical), -1, h, w)[:, :c])


def packed(tensor: Activation, value: Array) -> Array:
    """The physical tensor of an ONNX one: zeros around it and behind its channels."""
    if not tensor.block:
        if tensor.dtype == "uint16":
            value = _bf16_bits(value)
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
    if spec.op == "columns":
        return [columns.reference_layer(spec, x)]
    if spec.op in ("conv2d", "conv2d_bf16", "depthwise_conv2d"):
        return [_convolution(spec, x)]
    if spec.op == "matmul":
        return [_dense(spec, x, _weight(spec).astype(np.float64))]
    if spec.op == "matmul_bf16":
        return [_dense(spec, x, _widened(_bf16_bits(spec.weights["weight"])))]
    if spec.op in ("batched_matmul", "batched_matmul_bf16"):
        found = iter(x)
        left, right = (
            (spec.weights[side] if side in spec.weights else next(found)).transpose(a[f"{side}_order"])
            for side in ("left", "right")
        )
        product = left.astype(np.float64) @ right.astype(np.float64) * a["scale"] + spec.weights["bias"]
        return [_activate(product.astype(np.float32), a["activation"])]
    if spec.op == "attention":
        return [_attention(spec, x)]
    if spec.op == "layer_norm":
        return [_normalised(spec, x[0].astype(np.float64))]
    if spec.op == "embedding":
        rows = sum(spec.weights[f"table{i}"][ids].astype(np.float64) for i, ids in enumerate(x))
        return [_normalised(spec, (rows + spec.weights["positions"]).reshape(-1, spec.outputs[0].shape[1]))]
    if spec.op == "embedding_bag":
        mean = a["reduce"] == "mean"
        return [embedding.sls(ids, spec.weights[f"table{i}"], None, mean=mean) for i, ids in enumerate(x)]
    if spec.op == "lookups":
        return [embedding.reference_lookups(a, x, list(spec.weights.values()))]
    if spec.op == "recurrent":
        return _recurrent(spec, dict(zip(a["reads"], x, strict=True)))
    if spec.op == "pool2d":
        pool = spec.parameters_as(Pool2dParameters)
        windows = {"kernel_shape": pool.kernel, "strides": pool.strides, "pads": pool.pads}
        if pool.kind == PoolKind.MAXIMUM:
            return [_onnx("MaxPool", x, **windows)]
        return [_onnx("AveragePool", x, count_include_pad=pool.count_include_pad, **windows)]
    if spec.op == "global_average_pool":
        return [x[0].mean((2, 3), keepdims=True, dtype=np.float64)]
    if spec.op == "squeeze_excite":
        return [_squeeze_excite(spec, x[0])]
    if spec.op == "elementwise":
        return [_steps(spec, x)]
    if spec.op == "stitched":
        return reference_stitched(spec, x)
    if spec.op == "concat_sum":
        parts = [piece.reshape(len(piece), -1, spec.outputs[0].shape[1]).sum(1, dtype=np.float64) for piece in x]
        return [np.sum(parts, axis=0) * a["scale"]]
    if spec.op == "one_hot_sum":
        return [_one_hot_sum(spec, x)]
    if spec.op in ("concat", "concat_rows"):
        return [np.concatenate(x, axis=1)]
    if spec.op == "lrn":
        lrn = spec.parameters_as(LrnParameters)
        return [_onnx("LRN", x, beta=0.75, size=lrn.size, alpha=lrn.alpha, bias=lrn.bias)]
    if spec.op == "l2_normalize":
        length = np.sqrt((x[0].astype(np.float64) ** 2).sum(1, keepdims=True))
        length = np.maximum(length, spec.parameters_as(L2NormalizeParameters).least)
        return [(x[0] / length * spec.weights["scale"][:, None, None]).astype(np.float32)]
    if spec.op == "channels_last":
        return [x[0].transpose(0, 2, 3, 1)]
    return [x[0].reshape(x[0].shape)]  # to_blocked, to_plain, copy: the layout is all that changes


def _convolution(spec: LayerSpec, x: list[Array]) -> Array:
    """pool(activation(conv(x) + bias [+ residual]))."""
    conv = spec.parameters_as(Conv2dParameters)
    group = x[0].shape[1] if spec.op == "depthwise_conv2d" else conv.groups
    inputs = [x[0], _weight(spec), spec.weights["bias"]]
    y = _onnx("Conv", inputs, strides=conv.strides, pads=conv.pads, dilations=conv.dilations, group=group)
    if conv.shuffled:
        y = y.reshape(len(y), group, -1, *y.shape[2:]).swapaxes(1, 2).reshape(y.shape)
    y = _activate(y + x[1] if len(x) > 1 else y, conv.activation)
    if conv.pooled:
        ceil = any(2 * n > size for n, size in zip(spec.outputs[0].shape[2:], conv.pooled, strict=True))
        y = _onnx("MaxPool", [y], kernel_shape=(2, 2), strides=(2, 2), ceil_mode=int(ceil))
    return y


def _dense(spec: LayerSpec, x: list[Array], weight: Array) -> Array:
    """activation((x @ weight + bias) [* gate] [+ residual])."""
    rows, *sides = x
    product = rows.astype(np.float64) @ weight + spec.weights["bias"]
    if spec.attributes.get("gated"):
        product = product * sides.pop(0)
    if sides:
        product = product + sides[0]
    return _activate(product.astype(np.float32), spec.attributes["activation"])


def _attention(spec: LayerSpec, x: list[Array]) -> Array:
    """softmax(Q K^T * scale + mask) V of every image and head, merged into rows."""
    a, (rows, total) = spec.attributes, (x[0].shape[0], spec.outputs[0].shape[1])

    def heads(place: tuple[int, int], tokens: int) -> Array:
        side = x[place[0]][:, place[1] : place[1] + total].astype(np.float64)
        return side.reshape(len(side) // tokens, tokens, a["heads"], a["width"]).transpose(0, 2, 1, 3)

    counts = (a["tokens"], a["keys"], a["keys"])
    q, k, v = (heads(place, count) for place, count in zip(a["places"], counts, strict=True))
    scores = q @ k.transpose(0, 1, 3, 2) * a["scale"]
    if a["masked"]:
        scores = scores + (spec.weights["mask"] if "mask" in spec.weights else x[-1])
    likely = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = likely / likely.sum(-1, keepdims=True) @ v
    return np.asarray(mixed.transpose(0, 2, 1, 3).reshape(rows, total))


def _recurrent(spec: LayerSpec, given: Mapping[str, Array]) -> list[Array]:
    """A gated recurrent unit, gates in the order reset, update, candidate."""
    a, weights = spec.attributes, {name: array.astype(np.float64) for name, array in spec.weights.items()}
    x = given["x"] if a["x_order"] == "rows" else given["x"].transpose(1, 0, 2)
    rows, steps, _ = x.shape
    hidden = len(weights["recurrent"])
    h = given.get("initial", np.zeros((rows, hidden))).astype(np.float64)
    states = np.zeros((rows, steps, hidden))
    for step in range(steps):
        inner, outer = (x[:, step] @ weights["input"] + weights["bias"]), h @ weights["recurrent"]
        r, u = np.split(1 / (1 + np.exp(-inner - outer))[:, : 2 * hidden], 2, axis=1)
        if a["reset"] == "after":
            mixed = r * (outer[:, 2 * hidden :] + weights["candidate_bias"])
        else:
            mixed = (r * h) @ weights["recurrent"][:, 2 * hidden :]
        c = np.tanh(inner[:, 2 * hidden :] + mixed)
        if "scores" in given:
            scores = given["scores"] if a["x_order"] == "rows" else given["scores"].T
            u = u * (1 - scores[:, step : step + 1])
        runs = (step < given["lengths"])[:, None] if "lengths" in given else np.ones((rows, 1), bool)
        h = np.where(runs, u * h + (1 - u) * c, h)
        states[:, step] = np.where(runs, h, 0)
    found = {"states": states if a["y_order"] == "rows" else states.transpose(1, 0, 2), "last": h}
    return [found[name] for name in a["writes"]]


def _one_hot_sum(spec: LayerSpec, x: list[Array]) -> Array:
    parts = []
    for ids, depth, scale in zip(x, spec.attributes["depths"], spec.attributes["scales"], strict=True):
        places = np.where(ids < 0, ids + depth, ids)
        parts.append((places[:, :, None] == np.arange(depth)).sum(1) * np.float64(scale))
    counts = np.concatenate(parts, axis=1)
    return counts @ spec.weights["table"] + spec.weights["bias"] if "table" in spec.weights else counts


def _normalised(spec: LayerSpec, x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + spec.attributes["epsilon"])
    return np.asarray(centred / deviation * spec.weights["scale"] + spec.weights["shift"])


def _widened(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _weight(spec: LayerSpec) -> Array:
    """The weights as the kernel holds them: rounded where they are stored as bfloat16."""
    weight = np.ascontiguousarray(spec.weights["weight"], np.float32)
    if spec.op != "conv2d_bf16" and spec.attributes.get("storage") != "bf16":
        return weight
    return (_bf16_bits(weight).astype(np.uint32) << 16).view(np.float32)


def _bf16_bits(value: Array) -> Array:
    """Round to nearest even and keep the upper half."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _squeeze_excite(spec: LayerSpec, x: Array) -> Array:
    functions = spec.parameters_as(SqueezeExciteParameters)
    value = x.mean((2, 3), dtype=np.float64)
    for role, function in (("squeeze", functions.hidden), ("excite", functions.gate)):
        weight = spec.weights[role] if spec.inputs[0].dtype == "float32" else _widened(_bf16_bits(spec.weights[role]))
        value = value @ weight.T.astype(np.float64) + spec.weights[f"{role}_bias"]
        value = _activate(value.astype(np.float32), function)
    return _activate(x * value[:, :, None, None], functions.activation)


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
            value = _activate(value, step)
    return value


def _activate(value: Array, activation: str) -> Array:
    kind, *numbers = activation.split(":")
    parameters = [float(number) for number in numbers]
    wide = value.astype(np.float64)
    if kind.startswith("gated-"):
        result = wide * _activate(value, activation.removeprefix("gated-"))
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
        result = wide * (1 + _onnx("Erf", [np.asarray(value / np.sqrt(2), np.float32)])) / 2
    else:
        return value
    return np.asarray(result, np.float32)


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

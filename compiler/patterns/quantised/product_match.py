"""Finds products of 8-bit integers: a Conv, MatMul or Gemm of dequantised operands, and what is rounded behind it.

What one layer takes: product [+ bias] [reshaped] [activation] [rounded] [+ constant or tensor] [activation] [rounded].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.quantised import Window
from veltair.compiler.onnx.node_attributes import attribute, padding
from veltair.compiler.patterns.activations import activation_behind
from veltair.compiler.patterns.quantised.dynamic import dynamic_product
from veltair.compiler.patterns.quantised.quantum import (
    QuantisedTensor,
    Quantum,
    centred_steps,
    dequantised,
    quantised_behind,
)


@dataclass(frozen=True, slots=True)
class ProductMatch:
    """A product and its epilogue, as `QuantisedProductParameters` describes them."""

    name: str
    x: str  # the tensor of 8 bits
    quantum: Quantum | None  # of x; None where it is computed
    weight: NDArray[np.int8]  # (depth, columns); of a depthwise convolution (taps, channels)
    scale: NDArray[np.float32]  # of a column
    bias: NDArray[np.float32]
    output: str
    window: Window | None = None
    depthwise: bool = False
    first: str = "none"
    between: Quantum | None = None
    added: NDArray[np.float32] | None = None
    residual: QuantisedTensor | None = None
    last: str = "none"
    rounded: Quantum | None = None  # of the output
    dynamic: tuple[str, str] | None = None  # the tensors of scale and zero point


def find_quantised_products(view: ModelView) -> Matches:
    """All products whose inputs and weights are integers in the file."""
    matches = Matches()
    for node in view.nodes:
        if matches.is_inner(node) or view.matches.is_inner(node) or view.matches.has(node):
            continue
        nodes = [node]
        found: ProductMatch | None = None
        if node.op_type == "Conv":
            found = _convolution(node, view)
        elif node.op_type in ("MatMul", "Gemm"):
            found = _dense(node, view)
        elif node.op_type == "MatMulInteger":
            dynamic = dynamic_product(node, view)
            if dynamic is not None:
                nodes = list(dynamic.nodes)
                weight, scale = dynamic.weight, dynamic.scale
                bias = np.zeros(weight.shape[1], np.float32)
                names = (dynamic.x_scale, dynamic.x_zero)
                found = ProductMatch(node.name, dynamic.x, None, weight, scale, bias, dynamic.output, dynamic=names)
        if found is None:
            continue
        found = _with_epilogue(found, nodes, matches, view)
        if found.window is not None and found.rounded is None:
            continue  # feature maps of floats are in blocks
        matches.add(nodes[-1], found, nodes[:-1])
    return matches


def signed_weight(name: str, view: ModelView) -> tuple[NDArray[np.int8], NDArray[np.float32], int] | None:
    """Steps without their zero points, scales and their axis of a constant; None where the steps need over 8 bits."""
    constant = view.model.quantised.get(name)
    if constant is None or name not in view.constants:
        return None
    zero = constant.zero
    if zero.size > 1:
        if zero.size != constant.steps.shape[constant.axis]:
            return None
        zero = zero.reshape(zero.shape + (1,) * (constant.steps.ndim - 1 - constant.axis))
    steps = centred_steps(constant.steps, zero)
    return None if steps is None else (steps, constant.scale, constant.axis)


def _convolution(node: onnx.NodeProto, view: ModelView) -> ProductMatch | None:
    x, found = dequantised(node.input[0], view), signed_weight(node.input[1], view)
    bias = view.constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(1, np.float32)
    shape, out = view.shape_of(node.input[0]), view.shape_of(node.output[0])
    if x is None or found is None or bias is None or len(shape) != 4:
        return None
    weight, scale, axis = found
    channels, each, kh, kw = weight.shape
    group = attribute(node, "group", 1)
    depthwise = group == shape[1] == channels and group > 1
    if (group > 1 and not depthwise) or (scale.size > 1 and axis != 0):
        return None
    strides, dilations = (tuple(attribute(node, name, [1, 1])) for name in ("strides", "dilations"))
    pads = padding(node, shape[2:], out[2:], (kh, kw), strides, dilations)
    if min(pads) < 0:
        return None
    rows = weight.transpose(2, 3, 1, 0).reshape(kh * kw * each, channels)
    return ProductMatch(
        node.name,
        x.name,
        x.quantum,
        np.ascontiguousarray(rows),
        _columns(scale * np.float32(x.quantum.scale), channels),
        _columns(bias.reshape(-1), channels),
        node.output[0],
        window=Window((kh, kw), strides, dilations, tuple(pads)),
        depthwise=depthwise,
    )


def _dense(node: onnx.NodeProto, view: ModelView) -> ProductMatch | None:
    x, found = dequantised(node.input[0], view), signed_weight(node.input[1], view)
    if x is None or found is None or found[0].ndim != 2 or attribute(node, "transA", 0):
        return None
    weight, scale, axis = found
    factor = np.float32(1.0)
    bias: NDArray[Any] | None = np.zeros(1, np.float32)
    if node.op_type == "Gemm":
        factor = np.float32(attribute(node, "alpha", 1.0))
        if attribute(node, "transB", 0):
            weight, axis = weight.T, 1 - axis
        if len(node.input) > 2 and node.input[2]:
            bias = view.constants.get(node.input[2])
            bias = None if bias is None else bias * np.float32(attribute(node, "beta", 1.0))
    columns = weight.shape[1]
    if bias is None or not _fits(bias, columns) or (scale.size > 1 and axis != 1):
        return None
    return ProductMatch(
        node.name,
        x.name,
        x.quantum,
        np.ascontiguousarray(weight),
        _columns(scale * factor * np.float32(x.quantum.scale), columns),
        _columns(bias.reshape(-1), columns),
        node.output[0],
    )


def _with_epilogue(found: ProductMatch, nodes: list[onnx.NodeProto], taken: Matches, view: ModelView) -> ProductMatch:
    """The match with what follows it; `nodes` takes the nodes of that."""
    dense = found.window is None
    user = view.only_user(found.output)
    if dense and user is not None and user.op_type == "Add":
        added = _constant_operand(user, found.output, found.bias.size, view)
        if added is not None:
            nodes.append(user)
            found = replace(found, bias=found.bias + added, output=user.output[0])
            user = view.only_user(found.output)
    if dense and user is not None and user.op_type == "Reshape" and user.input[0] == found.output:
        shape = view.shape_of(user.output[0])
        if len(shape) > 1 and shape[-1] == found.bias.size:
            nodes.append(user)
            found = replace(found, output=user.output[0])
    name, first = _activation(found.output, nodes, view)
    found = replace(found, output=name, first=first)
    behind = quantised_behind(name, view)
    if behind is None:
        return found
    node, quantum = behind
    nodes.append(node)
    rounded = replace(found, output=node.output[0], rounded=quantum)
    return _with_sum(rounded, nodes, taken, view) or _with_activation(rounded, nodes, view) or rounded


def _with_activation(found: ProductMatch, nodes: list[onnx.NodeProto], view: ModelView) -> ProductMatch | None:
    """The match with an activation behind its rounding that is rounded again, as tools write with symmetric steps."""
    reader = view.only_user(found.output)
    if reader is None or dequantised(reader.output[0], view) != QuantisedTensor(found.output, _given(found.rounded)):
        return None
    behind = [reader]
    name, last = _activation(reader.output[0], behind, view)
    end = quantised_behind(name, view)
    if last == "none" or end is None:
        return None
    nodes.extend([*behind, end[0]])
    return replace(found, output=end[0].output[0], between=found.rounded, last=last, rounded=end[1])


def _with_sum(found: ProductMatch, nodes: list[onnx.NodeProto], taken: Matches, view: ModelView) -> ProductMatch | None:
    """The match with a sum behind its rounding that is rounded again."""
    reader = view.only_user(found.output)
    if reader is None or dequantised(reader.output[0], view) != QuantisedTensor(found.output, _given(found.rounded)):
        return None
    total = view.only_user(reader.output[0])
    if total is None or total.op_type != "Add" or taken.is_inner(total) or taken.has(total):
        return None
    added = _constant_operand(total, reader.output[0], found.bias.size, view) if found.window is None else None
    other = next((name for name in total.input if name != reader.output[0]), "")
    residual = None if added is not None or not other else dequantised(other, view)
    if added is None and (residual is None or view.shape_of(other) != view.shape_of(reader.output[0])):
        return None
    behind = [reader, total]
    name, last = _activation(total.output[0], behind, view)
    end = quantised_behind(name, view)
    if end is None:
        return None
    nodes.extend([*behind, end[0]])
    return replace(
        found,
        output=end[0].output[0],
        between=found.rounded,
        added=added,
        residual=residual,
        last=last,
        rounded=end[1],
    )


def _given(quantum: Quantum | None) -> Quantum:
    assert quantum is not None
    return quantum


def _activation(name: str, nodes: list[onnx.NodeProto], view: ModelView) -> tuple[str, str]:
    found = activation_behind(name, view)
    if found is None or any(view.matches.is_inner(node) or view.matches.has(node) for node in found.nodes):
        return name, "none"
    nodes.extend(found.nodes)
    return found.output, found.activation


def _constant_operand(node: onnx.NodeProto, name: str, columns: int, view: ModelView) -> NDArray[np.float32] | None:
    """What a sum adds to each column of a tensor, if that is constant."""
    other = view.constants.get(node.input[1] if node.input[0] == name else node.input[0])
    if other is None or not _fits(other, columns) or other.ndim > len(view.shape_of(name)):
        return None
    return _columns(other.reshape(-1), columns)


def _fits(value: NDArray[Any], columns: int) -> bool:
    return value.size == 1 or value.shape[-1:] == (value.size,) == (columns,)


def _columns(value: NDArray[Any], count: int) -> NDArray[np.float32]:
    return np.broadcast_to(value.astype(np.float32), (count,)).copy()

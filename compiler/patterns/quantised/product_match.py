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
from veltair.compiler.patterns.quantised.integer_weights import IntegerWeight, integer_weight, join_groups
from veltair.compiler.patterns.quantised.quantum import (
    QuantisedTensor,
    Quantum,
    dequantised,
    quantised_behind,
)
from veltair.compiler.patterns.vision.live_taps import live_taps


@dataclass(frozen=True, slots=True)
class ProductMatch:
    """A product and its epilogue, as `QuantisedProductParameters` describes them."""

    name: str
    x: str  # the tensor of 8 bits
    quantum: Quantum | None  # of x; None where it is computed
    weight: NDArray[Any]  # (depth, columns); of a depthwise convolution (taps, channels); int8, or int16 with zeros
    scale: NDArray[np.float32]  # of a column
    bias: NDArray[np.float32]
    output: str
    weight_zero: NDArray[np.int32] | None = None  # of each column, where weights need 9 bits
    window: Window | None = None
    depthwise: bool = False
    groups: int = 1
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
        if matches.is_inner(node) or not view.matches.is_free(node):
            continue
        nodes = [node]
        found: ProductMatch | None = None
        if node.op_type == "Conv":
            found = _convolution(node, view)
        elif node.op_type in ("MatMul", "Gemm"):
            found = _dense(node, view)
        elif node.op_type == "MatMulInteger":
            found = _dynamic_dense(node, nodes, view)
        elif node.op_type == "ConvInteger":
            found = _dynamic_convolution(node, nodes, view)
        if found is not None:
            found = _with_epilogue(found, nodes, matches, view)
            matches.add(nodes[-1], found, nodes[:-1])
    return matches


def _convolution(node: onnx.NodeProto, view: ModelView) -> ProductMatch | None:
    x, weight = dequantised(node.input[0], view), integer_weight(node.input[1], view)
    bias = view.constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(1, np.float32)
    if x is None or weight is None or bias is None:
        return None
    found = _windows(node, weight, view)
    if found is None:
        return None
    scale = found.scale * np.float32(x.quantum.scale)
    return replace(found, x=x.name, quantum=x.quantum, scale=scale, bias=_columns(bias.reshape(-1), scale.size))


def _dynamic_convolution(node: onnx.NodeProto, nodes: list[onnx.NodeProto], view: ModelView) -> ProductMatch | None:
    dynamic = dynamic_product(node, view)
    found = _windows(node, dynamic.weight, view) if dynamic is not None else None
    if dynamic is None or found is None:
        return None
    nodes[:] = dynamic.nodes
    return replace(found, x=dynamic.x, output=dynamic.output, dynamic=(dynamic.x_scale, dynamic.x_zero))


def _windows(node: onnx.NodeProto, given: IntegerWeight, view: ModelView) -> ProductMatch | None:
    """A convolution of steps without their scale, and without a bias."""
    shape, out = view.shape_of(node.input[0]), view.shape_of(node.output[0])
    weight = given.for_columns(0, len(given.steps))
    if weight is None or not view.is_map(node.input[0]):
        return None
    channels, each, *kernel = weight.steps.shape
    groups = attribute(node, "group", 1)
    if each * groups != shape[1] or channels % groups:
        return None
    strides, dilations = (tuple(attribute(node, name, [1, 1])) for name in ("strides", "dilations"))
    pads = padding(node, shape[2:], out[2:], tuple(kernel), strides, dilations)
    if min(pads) < 0:
        return None
    taps, dilations, pads = live_taps(weight.steps, shape[2:], out[2:], strides, dilations, pads)
    depthwise = groups == shape[1] == channels and groups > 1
    joined = (taps.reshape(channels, -1).T, 1) if depthwise else join_groups(taps, groups)
    if joined is None:
        return None
    rows, groups = joined
    return ProductMatch(
        node.name,
        node.input[0],
        None,
        np.ascontiguousarray(rows),
        _columns(weight.scale, channels),
        np.zeros(channels, np.float32),
        node.output[0],
        weight.zero,
        Window((taps.shape[2], taps.shape[3]), strides, dilations, pads),
        depthwise,
        groups,
    )


def _dense(node: onnx.NodeProto, view: ModelView) -> ProductMatch | None:
    x, given = dequantised(node.input[0], view), integer_weight(node.input[1], view)
    if x is None or given is None or given.steps.ndim != 2 or attribute(node, "transA", 0):
        return None
    steps, axis = given.steps, 1
    factor = np.float32(1.0)
    bias: NDArray[Any] | None = np.zeros(1, np.float32)
    if node.op_type == "Gemm":
        factor = np.float32(attribute(node, "alpha", 1.0))
        if attribute(node, "transB", 0):
            steps, axis = steps.T, 0
        if len(node.input) > 2 and node.input[2]:
            bias = view.constants.get(node.input[2])
            bias = None if bias is None else bias * np.float32(attribute(node, "beta", 1.0))
    columns = steps.shape[1]
    weight = given.for_columns(axis, columns)
    if bias is None or not _fits(bias, columns) or weight is None:
        return None
    return ProductMatch(
        node.name,
        x.name,
        x.quantum,
        np.ascontiguousarray(steps),
        _columns(weight.scale * factor * np.float32(x.quantum.scale), columns),
        _columns(bias.reshape(-1), columns),
        node.output[0],
        weight.zero,
    )


def _dynamic_dense(node: onnx.NodeProto, nodes: list[onnx.NodeProto], view: ModelView) -> ProductMatch | None:
    dynamic = dynamic_product(node, view)
    weight = dynamic.weight.for_columns(1, dynamic.weight.steps.shape[-1]) if dynamic is not None else None
    if dynamic is None or weight is None or weight.steps.ndim != 2:
        return None
    nodes[:] = dynamic.nodes
    columns = weight.steps.shape[1]
    return ProductMatch(
        node.name,
        dynamic.x,
        None,
        np.ascontiguousarray(weight.steps),
        _columns(weight.scale, columns),
        np.zeros(columns, np.float32),
        dynamic.output,
        weight.zero,
        dynamic=(dynamic.x_scale, dynamic.x_zero),
    )


def _with_epilogue(found: ProductMatch, nodes: list[onnx.NodeProto], taken: Matches, view: ModelView) -> ProductMatch:
    """The match with what follows it; `nodes` takes the nodes of that."""
    dense = found.window is None
    user = view.only_user(found.output)
    if user is not None and user.op_type == "Add":
        added = _constant_operand(user, found.output, found.bias.size, view, maps=not dense)
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
    if total is None or total.op_type != "Add" or not taken.is_free(total):
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
    if found is None:
        return name, "none"
    nodes.extend(found.nodes)
    return found.output, found.activation


def _constant_operand(
    node: onnx.NodeProto, name: str, columns: int, view: ModelView, *, maps: bool = False
) -> NDArray[np.float32] | None:
    """What a sum adds to each column of a tensor, or of feature maps to each channel, if that is constant."""
    other = view.constants.get(node.input[1] if node.input[0] == name else node.input[0])
    if other is None or other.ndim > len(view.shape_of(name)):
        return None
    if maps and other.size > 1:
        if other.size != columns or other.shape[-3:] != (columns, 1, 1):
            return None
    elif not _fits(other, columns):
        return None
    return _columns(other.reshape(-1), columns)


def _fits(value: NDArray[Any], columns: int) -> bool:
    return value.size == 1 or value.shape[-1:] == (value.size,) == (columns,)


def _columns(value: NDArray[Any], count: int) -> NDArray[np.float32]:
    return np.broadcast_to(value.astype(np.float32), (count,)).copy()

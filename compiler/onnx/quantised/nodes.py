"""Quantised operators as float ones between DequantizeLinear and QuantizeLinear, and quantised constants.

ONNX Runtime's tools write a quantised layer in either form; patterns look for the second one only. Constants are folded
to floats for whoever multiplies floats; `find_quantised` keeps the integers. Constants of 4 bits become ones of 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.onnx.constants import all_nodes, four_bit_values
from veltair.compiler.onnx.node_attributes import all_attributes, attribute
from veltair.compiler.onnx.node_evaluation import Array

Constants = dict[str, Array]
EIGHT_BIT_TYPES: Mapping[int, int] = {TensorProto.INT4: TensorProto.INT8, TensorProto.UINT4: TensorProto.UINT8}


@dataclass(frozen=True, slots=True)
class QuantisedConstant:
    """(steps - zero) * scale. `axis`: that of the scales where there are several.

    >>> QuantisedConstant(np.ones(2, np.int8), np.ones(1, np.float32), np.zeros(1, np.int8), axis=0).axis
    0
    """

    steps: Array  # uint8, int8 or int32
    scale: Array  # (1) or (extent of the axis)
    zero: Array  # likewise
    axis: int


def widen_four_bits(proto: onnx.ModelProto, path: Path) -> None:
    """Store initializers of 4 bits as 8 bits where DequantizeLinear alone reads them: it gives the same floats.

    Nothing behind this knows 4 bits. What other nodes read stays, and `check_tensors` refuses it. Raises ModelError
    where the data of a tensor does not fill its dimensions.
    """
    graph = proto.graph
    narrow = {tensor.name for tensor in graph.initializer if tensor.data_type in EIGHT_BIT_TYPES}
    narrow -= {output.name for output in graph.output}
    nodes = list(all_nodes(graph.node)) if narrow else []
    left = -1
    while left != len(narrow):  # a constant and its zero point are of one type
        left = len(narrow)
        for node in nodes:
            read = node.input if node.op_type != "DequantizeLinear" else node.input[1:2]
            narrow.difference_update(read)
            whole = narrow.issuperset(name for name in (*node.input[:1], *node.input[2:3]) if name)
            if node.op_type == "DequantizeLinear" and not whole:
                narrow.difference_update(node.input)
    for tensor in graph.initializer:
        if tensor.name in narrow:
            tensor.CopyFrom(numpy_helper.from_array(four_bit_values(tensor, path), tensor.name))
    for value in (*graph.input, *graph.value_info):
        if value.name in narrow:
            value.type.tensor_type.elem_type = EIGHT_BIT_TYPES[value.type.tensor_type.elem_type]


def find_quantised(graph: onnx.GraphProto, constants: Mapping[str, Array]) -> dict[str, QuantisedConstant]:
    """The constants that DequantizeLinear makes floats of, by the name of its output."""
    found = {}
    for node in graph.node:
        if node.op_type != "DequantizeLinear" or node.domain or attribute(node, "block_size", 0):
            continue
        if any(name not in constants for name in node.input if name):
            continue
        steps, scale, *rest = (constants[name] for name in node.input if name)
        zero = rest[0] if rest else np.zeros(scale.shape, steps.dtype)
        if scale.dtype == np.float32 and scale.ndim <= 1 and steps.dtype in (np.int8, np.uint8):
            axis = attribute(node, "axis", 1) % max(steps.ndim, 1)
            found[node.output[0]] = QuantisedConstant(steps, scale.reshape(-1), zero.reshape(-1), axis)
    return found


def separate_quantisation(graph: onnx.GraphProto, constants: Constants) -> None:
    """Replace quantised operators by float ones between DequantizeLinear and QuantizeLinear, where scales are constant.

    `constants` takes new ones, and so do the graph's initializers.
    """
    nodes = [made for node in graph.node for made in _separated(node, graph, constants) or [node]]
    del graph.node[:]
    graph.node.extend(nodes)


@dataclass(frozen=True, slots=True)
class _Form:
    """Where an operator has its operands: each is a tensor, its scale and its zero point, one behind the other."""

    op: str  # the float operator
    operands: tuple[int, ...]
    output: int  # the output's scale, with its zero point behind
    bias: int = 0  # of int32, in steps of the product of the operands' scales
    domain: str = "com.microsoft"


_FORMS: Mapping[str, _Form] = {
    "QLinearConv": _Form("Conv", (0, 3), 6, bias=8, domain=""),
    "QLinearMatMul": _Form("MatMul", (0, 3), 6, domain=""),
    "QGemm": _Form("Gemm", (0, 3), 7, bias=6),
    "QLinearAdd": _Form("Add", (0, 3), 6),
    "QLinearMul": _Form("Mul", (0, 3), 6),
    "QLinearSigmoid": _Form("Sigmoid", (0,), 3),
    "QLinearLeakyRelu": _Form("LeakyRelu", (0,), 3),
    "QLinearGlobalAveragePool": _Form("GlobalAveragePool", (0,), 3),
    "QLinearAveragePool": _Form("AveragePool", (0,), 3),
}


def _separated(node: onnx.NodeProto, graph: onnx.GraphProto, constants: Constants) -> list[onnx.NodeProto] | None:
    form = _FORMS.get(node.op_type)
    inputs = [*node.input, *[""] * 9]
    if form is None or node.domain != form.domain or attribute(node, "channels_last", 0) or not inputs[form.output]:
        return None
    scales = [inputs[place + 1] for place in form.operands] + [inputs[form.output]]
    zeros = [inputs[place + 2] for place in form.operands] + [inputs[form.output + 1]]
    if any(name not in constants for name in scales) or any(name and name not in constants for name in zeros):
        return None
    nodes, floats = list[onnx.NodeProto](), list[str]()
    for nth, (place, scale, zero) in enumerate(zip(form.operands, scales[:-1], zeros[:-1], strict=True)):
        name = f"{node.name}/operand_{nth}"
        axis = 0
        if constants[scale].size > 1 and not (form.op == "Conv" or attribute(node, "transB", 0)):
            if inputs[place] not in constants or constants[scale].ndim > 1:
                return None
            axis = constants[inputs[place]].ndim - 1
        given = [inputs[place], _flat(scale, graph, constants), *([_flat(zero, graph, constants)] if zero else [])]
        nodes.append(helper.make_node("DequantizeLinear", given, [name], name=name, axis=axis))
        floats.append(name)
    if form.bias and inputs[form.bias]:
        if inputs[form.bias] not in constants:
            return None
        step = constants[scales[0]].reshape(-1).astype(np.float64) * constants[scales[1]].reshape(-1)
        bias = (constants[inputs[form.bias]].reshape(-1) * step * attribute(node, "alpha", 1.0)).astype(np.float32)
        floats.append(_constant(f"{node.name}/bias", bias, graph, constants))
    kept = {name: value for name, value in all_attributes(node).items() if name != "channels_last"}
    result = f"{node.name}/result"
    nodes.append(helper.make_node(form.op, floats, [result], name=node.name, **kept))
    given = [result, _flat(scales[-1], graph, constants)]
    if zeros[-1]:
        given.append(_flat(zeros[-1], graph, constants))
    nodes.append(helper.make_node("QuantizeLinear", given, list(node.output[:1]), name=f"{node.name}/quantise"))
    return nodes


def _flat(name: str, graph: onnx.GraphProto, constants: Constants) -> str:
    """A scale or zero point as the two operators take it: one number without an axis."""
    value = constants[name]
    if value.ndim == 0 or value.size > 1:
        return name
    return _constant(f"{name}/scalar", value.reshape(()), graph, constants)


def _constant(name: str, value: Array, graph: onnx.GraphProto, constants: Constants) -> str:
    if name not in constants:
        constants[name] = value
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return name

"""Which nodes of a model of floats are rounded to 8 bits: those that kernels of 8-bit integers compute.

Whatever else is rounded costs accuracy and a pass over memory: left to itself, ONNX Runtime's tool rounds what
softmaxes, normalisations and products of two computed tensors read and give.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import onnx

from veltair.compiler.onnx.node_attributes import attribute

PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})
# Between two products of feature maps, these read and give 8 bits. Of activations the tool keeps what it must.
BETWEEN = frozenset(
    {"Add", "Relu", "Clip", "MaxPool", "GlobalAveragePool", "Flatten", "Reshape", "Squeeze", "Unsqueeze"}
)
CHOSEN = PRODUCTS | BETWEEN
QUANTISED = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"})
FEATURE_MAP = 4  # dimensions of the tensors between convolutions


def is_quantised(proto: onnx.ModelProto) -> bool:
    """Whether a file computes on 8-bit integers already."""
    return any(node.op_type in QUANTISED or node.op_type.startswith(("QLinear", "QGemm")) for node in proto.graph.node)


def left_in_floats(graph: onnx.GraphProto, ranks: Mapping[str, int]) -> list[str]:
    """The names of the nodes of kinds CHOSEN that no kernel of 8-bit integers computes. `ranks`: of every tensor."""
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    return [
        node.name for node in graph.node if node.op_type in CHOSEN and not _is_computed(node, weights, makers, ranks)
    ]


def _is_computed(
    node: onnx.NodeProto,
    weights: Mapping[str, tuple[int, ...]],
    makers: Mapping[str, onnx.NodeProto],
    ranks: Mapping[str, int],
) -> bool:
    if node.op_type in PRODUCTS:
        return _is_product(node, weights)
    if node.op_type == "Add":
        products = [name for name in node.input if _from_convolution(name, makers)]
        return bool(products) and not set(node.input) & weights.keys()
    if node.op_type in ("MaxPool", "GlobalAveragePool"):
        return ranks.get(node.input[0]) == FEATURE_MAP
    return True  # the tool rounds these behind rounded tensors alone


def _is_product(node: onnx.NodeProto, weights: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether it multiplies by constants in a way that `patterns.quantised` recognises."""
    shape = weights.get(node.input[1])
    if shape is None or node.input[0] in weights or any(name not in weights for name in node.input[2:] if name):
        return False
    if node.op_type != "Conv":
        return len(shape) == 2 and not attribute(node, "transA", 0)
    return len(shape) == FEATURE_MAP


def _from_convolution(name: str, makers: Mapping[str, onnx.NodeProto]) -> bool:
    maker = makers.get(name)
    while maker is not None and maker.op_type in ("Relu", "Clip", "BatchNormalization"):
        maker = makers.get(maker.input[0])
    return maker is not None and maker.op_type == "Conv"


def read_unrounded(graph: onnx.GraphProto, ranks: Mapping[str, int]) -> None:
    """Have products alone read rounded tensors, and all other nodes the floats that these are made from.

    The tool gives the rounded tensor to every reader, so that what a transformer adds up along its layers would be
    rounded in each of them. Feature maps are left as they are: kernels of 8-bit integers write them.
    """
    rounded = {node.output[0]: node for node in graph.node if node.op_type == "QuantizeLinear"}
    floats: dict[str, str] = {}  # by the tensor that DequantizeLinear gives
    for node in graph.node:
        before = rounded.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if before is not None and ranks.get(before.input[0], FEATURE_MAP) < FEATURE_MAP:
            floats[node.output[0]] = before.input[0]
    given = {value.name for value in graph.output}
    readers: dict[str, int] = defaultdict(int)
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in floats and node.op_type not in PRODUCTS and node.op_type not in QUANTISED:
                node.input[place] = floats[name]
            readers[node.input[place]] += 1
    unread = [
        node
        for node in graph.node
        if node.output[0] in floats and not readers[node.output[0]] and node.output[0] not in given
    ]
    for node in unread:
        readers[node.input[0]] -= 1
        graph.node.remove(node)
        if not readers[node.input[0]]:
            graph.node.remove(rounded[node.input[0]])

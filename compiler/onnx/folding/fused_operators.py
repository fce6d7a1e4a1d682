"""Operators of ONNX Runtime's own set that its optimiser makes of standard ones, and what they are made of.

A file that was saved behind the optimiser holds them; as standard operators our kernels compute them. An operator that
is not here, or has an option that is not, stays what it is and is left to ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import onnx

from veltair.compiler.onnx.folding.expansion import Expansion, PartsOfNode
from veltair.compiler.onnx.node_attributes import attribute

DOMAIN = "com.microsoft"
Ranks: TypeAlias = Mapping[str, int]  # of the node's inputs, as far as they are known


def expand_fused(
    node: onnx.NodeProto, ranks: Ranks, makers: Mapping[str, onnx.NodeProto] = MappingProxyType({})
) -> Expansion | None:
    """Standard nodes that make the outputs of a fused one under their names, and their constants; None where there are
    none that do.

    makers: the nodes that make its inputs, by tensor, as far as they are known.

    >>> node = onnx.helper.make_node("BiasGelu", ["x", "b"], ["y"], name="n", domain=DOMAIN)
    >>> [each.op_type for each in expand_fused(node, {"x": 2, "b": 1})[0]]
    ['Add', 'Div', 'Erf', 'Add', 'Mul', 'Mul']
    """
    if node.domain != DOMAIN or node.op_type not in _EXPANSIONS:
        return None
    parts = _Parts(node, ranks, makers)
    if not _EXPANSIONS[node.op_type](parts):
        return None
    return parts.nodes, parts.constants


class _Parts(PartsOfNode):
    """What a fused node becomes. `ranks` and `makers` are those of `expand_fused`."""

    def __init__(self, node: onnx.NodeProto, ranks: Ranks, makers: Mapping[str, onnx.NodeProto]) -> None:
        super().__init__(node)
        self.ranks, self.makers = ranks, makers


def _gelu(parts: _Parts, x: str) -> bool:
    part = parts.add("Erf", [parts.add("Div", [x, parts.number(math.sqrt(2))])])
    weighed = parts.add("Mul", [x, parts.add("Add", [part, parts.number(1.0)])])
    parts.add("Mul", [weighed, parts.number(0.5)], parts.fused.output[0])
    return True


def _bias_gelu(parts: _Parts) -> bool:
    return _gelu(parts, parts.add("Add", [parts.input(0), parts.input(1)]))


def _fast_gelu(parts: _Parts) -> bool:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    x = parts.input(0)
    if bias := parts.input(1):
        x = parts.add("Add", [x, bias])
    cube = parts.add("Mul", [parts.add("Pow", [x, parts.number(3.0)]), parts.number(0.044715)])
    inner = parts.add("Mul", [parts.add("Add", [x, cube]), parts.number(math.sqrt(2 / math.pi))])
    weight = parts.add("Add", [parts.add("Tanh", [inner]), parts.number(1.0)])
    parts.add("Mul", [parts.add("Mul", [x, weight]), parts.number(0.5)], parts.fused.output[0])
    return True


def _quick_gelu(parts: _Parts) -> bool:
    x = parts.input(0)
    scaled = parts.add("Mul", [x, parts.number(parts.given("alpha", 1.702))])
    parts.add("Mul", [x, parts.add("Sigmoid", [scaled])], parts.fused.output[0])
    return True


def _skip_layer_norm(parts: _Parts) -> bool:
    node = parts.fused
    if any(node.output[1:3]):  # mean and deviation: of training
        return False
    whole = node.output[3] if len(node.output) > 3 else ""
    sides = [parts.input(0), parts.input(1)]
    if bias := parts.input(4):  # of the product that is one of the sides, where it is the bias of a dense layer
        products = [
            i for i, name in enumerate(sides) if name in parts.makers and parts.makers[name].op_type == "MatMul"
        ]
        side = products[0] if products else 0
        sides[side] = parts.add("Add", [sides[side], bias])
    joined = parts.add("Add", sides, whole)
    scale = [joined, parts.input(2), *filter(None, [parts.input(3)])]
    epsilon = parts.given("epsilon", 1e-12)
    parts.add("LayerNormalization", scale, node.output[0], axis=-1, epsilon=epsilon)
    return True


def _matmul(parts: _Parts) -> bool:
    sides = []
    for place, side in enumerate("AB"):
        name = parts.input(place)
        if parts.given(f"transBatch{side}", 0):
            return False
        if parts.given(f"trans{side}", 0):
            rank = parts.ranks.get(name, 0)
            if rank < 2:
                return False
            axes = [*range(rank - 2), rank - 1, rank - 2]
            maker = parts.makers.get(name)
            if maker is not None and maker.op_type == "Transpose":  # one for both, as the optimiser found it
                before = attribute(maker, "perm", [*range(rank)][::-1])
                name, axes = maker.input[0], [before[axis] for axis in axes]
            name = parts.add("Transpose", [name], perm=axes)
        sides.append(name)
    alpha = parts.given("alpha", 1.0)
    if alpha != 1.0:
        sides = [parts.add("MatMul", sides), parts.number(alpha)]
    parts.add("MatMul" if alpha == 1.0 else "Mul", sides, parts.fused.output[0])
    return True


# By ONNX Runtime's name of an activation: the attributes that its parameters are.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh"), ()),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}


def _activate(parts: _Parts, x: str, kind: str, attributes: Mapping[str, float]) -> bool:
    if kind not in _ACTIVATIONS:
        return False
    parts.add(kind, [x], parts.fused.output[0], **attributes)
    return True


def _conv(parts: _Parts) -> bool:
    kept = parts.kept("group", "pads", "strides", "dilations", "kernel_shape", "auto_pad")
    x = parts.add("Conv", parts.inputs(3), **kept)
    if other := parts.input(3):
        x = parts.add("Add", [x, other])
    kind, numbers = parts.given("activation", b"").decode(), parts.given("activation_params", [])
    if kind == "Clip":
        parts.add("Clip", [x, *map(parts.number, numbers)], parts.fused.output[0])
        return True
    return _activate(parts, x, kind, dict(zip(_ACTIVATIONS.get(kind, ()), numbers, strict=False)))


def _gemm(parts: _Parts) -> bool:
    x = parts.add("Gemm", parts.inputs(3), **parts.kept("alpha", "beta", "transA", "transB"))
    kind, begin = parts.given("activation", b"").decode(), "activation_"
    own = parts.kept(*(f"{begin}{name}" for name in _ACTIVATIONS.get(kind, ())))
    return _activate(parts, x, kind, {name.removeprefix(begin): value for name, value in own.items()})


_EXPANSIONS: dict[str, Callable[[_Parts], bool]] = {
    "Gelu": lambda parts: _gelu(parts, parts.input(0)),
    "BiasGelu": _bias_gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_layer_norm,
    "FusedMatMul": _matmul,
    "FusedConv": _conv,
    "FusedGemm": _gemm,
}

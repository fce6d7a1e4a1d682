"""Activation functions as ONNX nodes spell them: one node, or a few around their common input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.lowering import Lowering
from veltair.compiler.node import attribute

Constants = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Activated:
    activation: str  # as `emit.activate` names it
    output: str  # name of the tensor that comes out
    nodes: tuple[onnx.NodeProto, ...]


def activation_behind(name: str, lowering: Lowering) -> Activated | None:
    """The activation function that all users of a tensor make up, if they do."""
    users = lowering.users.get(name, [])
    if name in lowering.output_names:
        return None
    if len(users) == 1:
        activation = activation_of(users[0], lowering.constants)
        return Activated(activation, users[0].output[0], (users[0],)) if activation else None
    if len(users) == 2:
        return _gated(name, users, lowering) or _gelu(name, users, lowering)
    return None


def activation_of(node: onnx.NodeProto, constants: Constants) -> str | None:
    """The activation function that a node is by itself."""
    kind, slope = node.op_type, None
    if kind == "Clip":
        names = [*node.input[1:], "", ""][:2]
        if any(name and name not in constants for name in names):
            return None
        limit = float(np.finfo(np.float32).max)
        low, high = (float(constants[n]) if n else d for n, d in zip(names, (-limit, limit), strict=True))
        return f"clip:{low!r}:{high!r}"
    if kind == "PRelu" and node.input[1] in constants and np.unique(constants[node.input[1]]).size == 1:
        slope = float(constants[node.input[1]].flat[0])
    if kind == "LeakyRelu":
        slope = float(attribute(node, "alpha", 0.01))
    if slope is not None:
        return f"leaky:{slope!r}"
    if kind == "Elu":
        return f"elu:{float(attribute(node, 'alpha', 1.0))!r}"
    if kind == "HardSigmoid":
        alpha, beta = float(attribute(node, "alpha", 0.2)), float(attribute(node, "beta", 0.5))
        return f"hardsigmoid:{alpha!r}:{beta!r}"
    return {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "HardSwish": "gated-hardsigmoid:0.16666667:0.5"}.get(
        kind
    )


def _gated(name: str, users: list[onnx.NodeProto], lowering: Lowering) -> Activated | None:
    """x * gate(x): SiLU and hard swish."""
    gates = [node for node in users if node.op_type in ("Sigmoid", "HardSigmoid")]
    products = [node for node in users if node.op_type == "Mul"]
    if not gates or not products:
        return None
    (gate,), (product,) = gates, products
    reader = lowering.only_user(gate.output[0])
    if reader is None or reader is not product:
        return None
    if sorted(product.input) != sorted((name, gate.output[0])):
        return None
    return Activated(f"gated-{activation_of(gate, lowering.constants)}", product.output[0], (gate, product))


def _gelu(name: str, users: list[onnx.NodeProto], lowering: Lowering) -> Activated | None:
    """x * (1 + erf(x / sqrt 2)) * 0.5, as torch exports it."""
    chain = [node for node in users if node.op_type in ("Div", "Mul") and _constant(node, lowering.constants)]
    if len(chain) != 1:
        return None
    for kind in ("Erf", "Add", "Mul", "Mul"):
        user = lowering.only_user(chain[-1].output[0])
        if user is None or user.op_type != kind:
            return None
        chain.append(user)
    scale, _, one, product, half = chain
    root = _constant(scale, lowering.constants)
    factors = (1 / root if scale.op_type == "Div" else root, _constant(one, lowering.constants))
    right = np.allclose([*factors, _constant(half, lowering.constants)], [2**-0.5, 1.0, 0.5], rtol=1e-4)
    if not right or product not in users or name not in product.input:
        return None
    return Activated("gelu", half.output[0], tuple(chain))


def _constant(node: onnx.NodeProto, constants: Constants) -> float:
    """The one number that stands beside a tensor; 0 where there is none."""
    found = [constants[i] for i in node.input if i in constants and constants[i].size == 1]
    behind = len(node.input) == 2 and (node.op_type != "Div" or node.input[1] in constants)
    return float(found[0].reshape(())) if len(found) == 1 and behind else 0.0

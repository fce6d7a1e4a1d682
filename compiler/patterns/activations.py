"""Recognition of activation functions: one ONNX node, or a few around their common input."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute

Constants = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ActivationMatch:
    """The nodes that compute an activation function.

    >>> ActivationMatch("relu", "y", (onnx.helper.make_node("Relu", ["x"], ["y"]),)).output
    'y'
    """

    activation: str  # as `codegen.activation.apply_activation` names it
    output: str  # name of the tensor that comes out
    nodes: tuple[onnx.NodeProto, ...]


def activation_behind(name: str, view: ModelView) -> ActivationMatch | None:
    """The activation function that all users of a tensor compute together, if they do and belong to no match."""
    users = view.users_of(name)
    if name in view.output_names:
        return None
    if len(users) == 1:
        activation = activation_of(users[0], view.constants)
        found = ActivationMatch(activation, users[0].output[0], (users[0],)) if activation else None
    else:
        gated = _match_gated(name, users, view) if len(users) == 2 else None
        found = gated or _match_formula(name, view)
    return found if found is not None and all(map(view.matches.is_free, found.nodes)) else None


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
    if kind == "Gelu":
        return "gelu-tanh" if attribute(node, "approximate", b"none") == b"tanh" else "gelu"
    return {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "HardSwish": "gated-hardsigmoid:0.16666667:0.5"}.get(
        kind
    )


def _match_gated(name: str, users: Sequence[onnx.NodeProto], view: ModelView) -> ActivationMatch | None:
    """x * gate(x): SiLU and hard swish."""
    gates = [node for node in users if node.op_type in ("Sigmoid", "HardSigmoid")]
    products = [node for node in users if node.op_type == "Mul"]
    if not gates or not products:
        return None
    (gate,), (product,) = gates, products
    reader = view.only_user(gate.output[0])
    if reader is None or reader is not product:
        return None
    if sorted(product.input) != sorted((name, gate.output[0])):
        return None
    return ActivationMatch(f"gated-{activation_of(gate, view.constants)}", product.output[0], (gate, product))


# Functions that exporters write as a few nodes in any order. They are recognised by their values at the points of GRID.
GRID = np.linspace(-10, 10, 401)
_ERF = np.array([math.erf(x) for x in GRID / math.sqrt(2)])
FORMULAS = {
    "gelu": GRID * (1 + _ERF) / 2,
    "gelu-tanh": GRID * (1 + np.tanh(math.sqrt(2 / math.pi) * (GRID + 0.044715 * GRID**3))) / 2,
}
MAX_FORMULA_NODES = 9
TOLERANCE = 1e-5  # the two kinds of GELU are 5e-4 apart
OPERATORS: Mapping[str, Callable[..., NDArray[np.float64]]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Tanh": np.tanh,
    "Erf": np.vectorize(math.erf, otypes=[float]),
}


def _match_formula(name: str, view: ModelView) -> ActivationMatch | None:
    """One of FORMULAS, if the nodes around a tensor compute it and nothing else reads the tensors between them."""
    values = {name: GRID}  # of each tensor of the formula so far
    nodes: list[onnx.NodeProto] = []
    while len(nodes) < MAX_FORMULA_NODES and not values.keys() & view.output_names:
        inside = set(map(id, nodes))
        for node in (user for t in values for user in view.users_of(t) if id(user) not in inside):
            operands = [values[i] if i in values else _number(i, view.constants) for i in node.input]
            fits = view.shape_of(node.output[0]) == view.shape_of(name)
            if node.op_type in OPERATORS and fits and all(operand is not None for operand in operands):
                break
        else:
            return None
        nodes.append(node)
        with np.errstate(all="ignore"):
            values[node.output[0]] = OPERATORS[node.op_type](*operands)
        inside.add(id(node))
        open_ends = {t for t in values for user in view.users_of(t) if id(user) not in inside}
        if open_ends <= {node.output[0]}:
            for activation, expected in FORMULAS.items():
                if np.allclose(values[node.output[0]], expected, rtol=TOLERANCE, atol=TOLERANCE):
                    return ActivationMatch(activation, node.output[0], tuple(nodes))
    return None


def _number(name: str, constants: Constants) -> NDArray[np.float64] | None:
    """A constant of one element."""
    value = constants.get(name)
    return None if value is None or value.size != 1 else np.asarray(value, np.float64).reshape(())

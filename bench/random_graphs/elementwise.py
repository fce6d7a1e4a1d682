"""Functions of elements, of one value or of several that are broadcast."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from bench.random_graphs.drawing import Values, chance, draws, last, node, one_of, weights

UNARY = "Relu Sigmoid Tanh Softplus Softsign Erf Abs Neg Exp Sin Cos Floor Ceil HardSwish Elu Selu LeakyRelu"
UNARY += " HardSigmoid Celu Mish Sign Round Atan Identity ThresholdedRelu"


@draws
def unary(v: Values) -> list[NodeProto] | None:
    if (x := v.pick()) is None:
        return None
    return [node(v, one_of(v, *UNARY.split()), x)]


@draws
def guarded(v: Values) -> list[NodeProto] | None:
    """Sqrt, Log, Reciprocal and Pow of what is positive."""
    if (x := v.pick()) is None:
        return None
    nodes = [node(v, "Abs", x)]
    nodes.append(node(v, "Add", last(nodes), v.constant(np.float32(0.5))))
    op = one_of(v, "Sqrt", "Log", "Reciprocal", "Pow")
    more = (v.constant(np.float32(one_of(v, 2.0, 0.5, -1.0, 1.7))),) if op == "Pow" else ()
    return [*nodes, node(v, op, last(nodes), *more)]


@draws
def clip(v: Values) -> list[NodeProto] | None:
    if (x := v.pick()) is None:
        return None
    low, high = v.constant(np.float32(-0.5)), v.constant(np.float32(1.0))
    return [node(v, "Clip", x, *one_of(v, (low, high), (low,), ("", high)))]


@draws
def gelu(v: Values) -> list[NodeProto] | None:
    if (x := v.pick()) is None:
        return None
    if chance(v, 0.5):
        return [node(v, "Gelu", x, approximate=one_of(v, "none", "tanh"))]
    nodes = [node(v, "Div", x, v.constant(np.float32(2**0.5)))]
    nodes.append(node(v, "Erf", last(nodes)))
    nodes.append(node(v, "Add", last(nodes), v.constant(np.float32(1))))
    nodes.append(node(v, "Mul", x, last(nodes)))
    return [*nodes, node(v, "Mul", last(nodes), v.constant(np.float32(0.5)))]


@draws
def binary(v: Values) -> list[NodeProto] | None:
    """Two values, or a value and a constant that is broadcast."""
    op = one_of(v, "Add", "Sub", "Mul", "Max", "Min", "Mean", "Sum")
    if (x := v.pick()) is None:
        return None
    if chance(v, 0.6):
        shape = [extent if v.fixed(x, axis) and chance(v, 0.6) else 1 for axis, extent in enumerate(v.shape(x))]
        if not v.fixed(x, 0) and chance(v, 0.5):
            shape = shape[1:]
        y = weights(v, *shape, scale=1.0)
        pair = (x, y) if chance(v, 0.5) else (y, x)
        return [node(v, op, *pair)]
    y = v.pick()
    return None if y is None else [node(v, op, x, y)]


@draws
def divide(v: Values) -> list[NodeProto] | None:
    x, y = v.pick(), v.pick()
    if x is None or y is None:
        return None
    nodes = [node(v, "Abs", y)]
    nodes.append(node(v, "Add", last(nodes), v.constant(np.float32(1))))
    return [*nodes, node(v, "Div", x, last(nodes))]


@draws
def compare(v: Values) -> list[NodeProto] | None:
    if (x := v.pick()) is None:
        return None
    op = one_of(v, "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
    return [node(v, op, x, v.constant(np.float32(one_of(v, 0.0, 0.3, -1.0))))]


@draws
def logical(v: Values) -> list[NodeProto] | None:
    x, y = v.pick(kind="b"), v.pick(kind="b")
    if x is None or y is None:
        return None
    return [node(v, "Not", x)] if chance(v, 0.3) else [node(v, one_of(v, "And", "Or", "Xor"), x, y)]


@draws
def where(v: Values) -> list[NodeProto] | None:
    condition, x = v.pick(kind="b"), v.pick()
    if condition is None or x is None:
        return None
    other = v.pick() if chance(v, 0.3) else v.constant(np.float32(one_of(v, 0.0, -1e4, 1.0)))
    if other is None:
        return None
    return [node(v, "Where", condition, *((x, other) if chance(v, 0.5) else (other, x)))]


@draws
def cast(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(kind=one_of(v, "b", "i"))) is None:
        return None
    return [node(v, "Cast", x, to=1)]


@draws
def prelu(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 5))) is None or not v.fixed(x, 1):
        return None
    shape = [v.shape(x)[1], *[1] * (len(v.shape(x)) - 2)]
    return [node(v, "PRelu", x, weights(v, *shape, scale=0.3))]

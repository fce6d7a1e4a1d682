"""Activation functions of vectors of 16 floats."""

from __future__ import annotations

from math import pi

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vector_math import approximate_sigmoid, erf, exp, sigmoid, tanh
from veltair.compiler.codegen.vectors import Expr, broadcast

# sigmoid(a x + b x**3) is the normal distribution's share below x, to where x times it is off by 3e-4 at most.
_NORMAL_CDF = (1.60037536637, 0.06936813633)


def apply_activation(value: Expr, activation: str, approximate: bool = False) -> Expr:
    """The activation function at the end of an epilogue; NaN stays NaN, so bounds come first, as in `vector_math`.

    activation: "none", "relu", "clip:low:high", "leaky:slope", "elu:alpha", "sigmoid", "hardsigmoid:alpha:beta",
        "tanh", "gelu" (by erf), "gelu-tanh", or "gated-F": the value times F of the value.
    approximate: the result is rounded to bfloat16 on a CPU with AVX-512, so fewer correct bits will do.
    """
    kind, *numbers = activation.split(":")
    parameters = [broadcast(float(number)) for number in numbers]
    value = T.bind(value)
    if kind.startswith("gated-"):
        return value * apply_activation(value, activation.removeprefix("gated-"), approximate)
    if kind == "relu":
        return T.max(broadcast(0.0), value)
    if kind == "clip":
        low, high = parameters
        return T.min(high, T.max(low, value))
    if kind == "leaky":
        return T.max(broadcast(0.0), value) + T.min(broadcast(0.0), value) * parameters[0]
    if kind == "elu":
        return T.max(broadcast(0.0), value) + (exp(T.min(broadcast(0.0), value)) - broadcast(1.0)) * parameters[0]
    if kind == "hardsigmoid":
        return T.min(broadcast(1.0), T.max(broadcast(0.0), value * parameters[0] + parameters[1]))
    if kind == "gelu" and approximate:
        linear, cubic = map(broadcast, _NORMAL_CDF)
        return value * approximate_sigmoid(value * (value * value * cubic + linear))
    if kind == "gelu":
        return (value * broadcast(0.5)) * (broadcast(1.0) + erf(value * broadcast(0.5**0.5)))
    if kind == "gelu-tanh":
        inner = (value + value * value * value * broadcast(0.044715)) * broadcast(2 * (2 / pi) ** 0.5)
        return value * sigmoid(inner)
    if kind == "sigmoid":
        return approximate_sigmoid(value) if approximate else sigmoid(value)
    return tanh(value) if kind == "tanh" else value

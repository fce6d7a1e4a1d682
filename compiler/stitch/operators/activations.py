"""Activations and powers of ONNX in the stitching language. Where their formulas overflow, the language's do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.stitch.operators.operator_builder import OperatorBuilder
from veltair.compiler.stitch.stitch_program import OpTerm

# Exponents up to here are products, and others by way of the logarithm, whose error they multiply.
LARGEST_EXPONENT = 8


def _pow(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    exponent = x[1]
    if isinstance(exponent, str) or not 0 < abs(exponent) <= LARGEST_EXPONENT:
        raise LookupError("Pow")
    inverse = exponent < 0
    power: OpTerm
    if abs(exponent) == 0.5:
        power = out.put("sqrt", x[0], last=not inverse)
    elif exponent.is_integer():
        power = _product(out, x[0], int(abs(exponent)), last=not inverse)
    else:
        out.put("exp", out.put("mul", out.put("log", x[0]), exponent), last=True)
        return
    if inverse:
        out.put("reciprocal", power, last=True)


def _product(out: OperatorBuilder, x: OpTerm, count: int, last: bool) -> OpTerm:
    """x times itself, `count` factors, each half of them computed once."""
    if count == 1:
        return out.put("mul", x, 1.0, last=True) if last else x
    half = _product(out, x, count // 2, last=False)
    square = out.put("mul", half, half, last=last and count % 2 == 0)
    return out.put("mul", square, x, last=last) if count % 2 else square


def _clip(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    low, high = [*x[1:], "", ""][:2]
    if any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high)):
        raise LookupError("Clip")  # ONNX Runtime takes NaN for no bound
    # A bound that is left out is the greatest float (ONNX), which an infinity is beyond.
    limit = float(np.finfo(np.float32).max)
    value = out.put("max", x[0], -limit if low == "" else low)
    out.put("min", value, limit if high == "" else high, last=True)


def _gelu(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    half = out.put("mul", x[0], 0.5)
    if attribute(node, "approximate", b"none") == b"tanh":
        cube = out.put("mul", out.put("mul", x[0], x[0]), out.put("mul", x[0], 0.044715))
        inner = out.put("tanh", out.put("mul", out.put("add", x[0], cube), math.sqrt(2 / math.pi)))
    else:
        inner = out.put("erf", out.put("mul", x[0], math.sqrt(0.5)))
    out.put("mul", half, out.put("add", inner, 1.0), last=True)


def _hard_sigmoid(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    swish = node.op_type == "HardSwish"
    alpha, beta = (1 / 6, 0.5) if swish else (attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5))
    line = out.put("add", out.put("mul", x[0], float(alpha)), float(beta))
    gate = out.put("min", out.put("max", line, 0.0), 1.0, last=not swish)
    if swish:
        out.put("mul", x[0], gate, last=True)


def _leaky(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    slope = x[1] if node.op_type == "PRelu" else float(attribute(node, "alpha", 0.01))
    below = out.put("mul", out.put("min", x[0], 0.0), slope)
    out.put("add", out.put("max", x[0], 0.0), below, last=True)


def _elu(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    """gamma (max(x, 0) + alpha (exp(min(x, 0) / width) - 1))."""
    selu = node.op_type == "Selu"
    alpha = float(attribute(node, "alpha", 1.67326319217681884765625 if selu else 1.0))
    gamma = float(attribute(node, "gamma", 1.05070102214813232421875)) if selu else 1.0
    below = out.put("min", x[0], 0.0)
    if node.op_type == "Celu":
        if not alpha > 0:
            raise LookupError("Celu")
        below = out.put("mul", below, 1 / alpha)
    powers = out.put("mul", out.put("sub", out.put("exp", below), 1.0), gamma * alpha)
    above = out.put("max", x[0], 0.0)
    out.put("add", out.put("mul", above, gamma) if selu else above, powers, last=True)


def _softplus(out: OperatorBuilder, x: OpTerm, last: bool) -> str:
    """log(1 + e**x) as max(x, 0) + log(1 + e**-|x|)."""
    power = out.put("exp", out.put("neg", out.put("abs", x)))
    return out.put("add", out.put("max", x, 0.0), out.put("log", out.put("add", power, 1.0)), last=last)


def _mish(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    out.put("mul", x[0], out.put("tanh", _softplus(out, x[0], last=False)), last=True)


def _softsign(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    out.put("div", x[0], out.put("add", out.put("abs", x[0]), 1.0), last=True)


def _thresholded(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    out.put("where", out.put("less", float(attribute(node, "alpha", 1.0)), x[0]), x[0], 0.0, last=True)


def _swish(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    alpha = float(attribute(node, "alpha", 1.0))
    scaled = x[0] if alpha == 1 else out.put("mul", x[0], alpha)
    out.put("mul", x[0], out.put("sigmoid", scaled), last=True)


ACTIVATIONS: Mapping[str, Callable[[onnx.NodeProto, OperatorBuilder, Sequence[OpTerm]], object]] = {
    "Pow": _pow,
    "Clip": _clip,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_sigmoid,
    "Swish": _swish,
    "LeakyRelu": _leaky,
    "PRelu": _leaky,
    "Elu": _elu,
    "Selu": _elu,
    "Celu": _elu,
    "Softplus": lambda node, out, x: _softplus(out, x[0], last=True),
    "Mish": _mish,
    "Softsign": _softsign,
    "ThresholdedRelu": _thresholded,
    "Relu": lambda node, out, x: out.put("max", x[0], 0.0, last=True),
}

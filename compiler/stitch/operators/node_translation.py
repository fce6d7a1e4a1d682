"""Translates ONNX nodes to operators of the stitching language.

A node that the language cannot state, or whose shapes or types it cannot, is left to other kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.stitch.operators.activations import ACTIVATIONS
from veltair.compiler.stitch.operators.operator_builder import OperatorBuilder
from veltair.compiler.stitch.stitch_program import OpTerm, StitchOp
from veltair.types import TensorSpec

BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}
VARIADIC = {"Sum": "add", "Min": "min", "Max": "max"}
_SAME_NAME = ("Exp", "Log", "Sqrt", "Erf", "Tanh", "Sigmoid", "Neg", "Abs", "Reciprocal", "Round", "Sin", "Cos")
UNARY = {name: name.lower() for name in _SAME_NAME}
COMPARISONS = {
    "Less": ("less", False),
    "LessOrEqual": ("less_equal", False),
    "Equal": ("equal", False),
    "Greater": ("less", True),
    "GreaterOrEqual": ("less_equal", True),
}  # the operator, and whether its operands are swapped
LOGIC = {"And": "mul", "Or": "max"}  # of ones and zeros
REDUCED = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
    *("ReduceLogSum", "ReduceLogSumExp", "GlobalAveragePool"),
)
TRUE = {*COMPARISONS, *LOGIC, "Not"}  # their results are booleans


def translate_node(
    node: onnx.NodeProto, values: Mapping[str, TensorSpec], constants: Mapping[str, NDArray[Any]], opset: int
) -> tuple[StitchOp, ...] | None:
    """The operators of a node; None for a node that is left to other kernels."""
    if len([name for name in node.output if name]) != 1 or not _typed(node, values, constants):
        return None
    out = OperatorBuilder(node, values, constants)
    try:
        _translate(node, out, opset)
    except LookupError:
        return None
    made = out.ops[-1].stored_shape if out.ops else None
    return (
        tuple(out.ops)
        if made == values[node.output[0]].shape and any(True for o in out.ops for _ in o.operands)
        else None
    )


def _typed(node: onnx.NodeProto, values: Mapping[str, TensorSpec], constants: Mapping[str, NDArray[Any]]) -> bool:
    """Whether types fit: floats in and out, booleans for logic, integers for casts."""

    def dtype(name: str) -> str:
        return str(constants[name].dtype) if name in constants else values[name].dtype

    result = dtype(node.output[0])
    used = [dtype(name) for name in node.input if name]
    if node.op_type == "Cast":
        return result == "float32" and used[0] in ("float32", "bool", "int32", "int64")
    if node.op_type == "Where":
        return result == "float32" and used[0] == "bool"
    if node.op_type in LOGIC or node.op_type == "Not":
        return set(used) == {"bool"}
    if node.op_type in (*REDUCED, "Tile", "Expand"):
        used = used[:1]  # axes, repeats and shapes are integers
    if node.op_type in COMPARISONS:
        return set(used) == {"float32"}
    if node.op_type == "Pow":
        return used[0] == result == "float32"
    return result == "float32" and set(used) == {"float32"}


def _translate(node: onnx.NodeProto, out: OperatorBuilder, opset: int) -> None:
    kind = node.op_type
    x = [out.term(name) if name else "" for name in node.input]
    if kind == "Sub" and x[0] == x[1]:  # TVM makes 0 of x - x, which is NaN for NaN and infinities, as x * 0 is
        out.put("mul", x[0], 0.0, last=True)
    elif kind in BINARY:
        out.put(BINARY[kind], *x, last=True)
    elif kind in VARIADIC:
        total = x[0]
        for i, other in enumerate(x[1:], 2):
            total = out.put(VARIADIC[kind], total, other, last=i == len(x))
    elif kind in UNARY:
        out.put(UNARY[kind], x[0], last=True)
    elif kind in COMPARISONS:
        name, swapped = COMPARISONS[kind]
        name = "less_equal" if name == "equal" and x[0] == x[1] else name  # TVM makes true of x == x, whatever x is
        out.put(name, *(x[::-1] if swapped else x), last=True)
    elif kind in LOGIC:
        out.put(LOGIC[kind], *x, last=True)
    elif kind in REDUCED:
        _reduction(node, out, x[0], opset)
    elif kind in SPECIAL:
        SPECIAL[kind](node, out, x)
    else:
        raise LookupError(kind)


def _reduction(node: onnx.NodeProto, out: OperatorBuilder, x: OpTerm, opset: int) -> None:
    kind, rank = node.op_type, len(out.shape(x))
    if kind == "GlobalAveragePool":
        axes: Any = range(2, rank)
    elif len(node.input) > 1 and node.input[1]:
        axes = out.constants[node.input[1]].reshape(-1).tolist()  # a KeyError where they are computed
    else:
        axes = attribute(node, "axes", ())
    if not len(axes) and not attribute(node, "noop_with_empty_axes", 0):
        axes = range(rank)
    axes = sorted({axis % rank - rank for axis in axes})
    if kind in ("ReduceL2", "ReduceSumSquare"):
        square = out.reduce("sum", out.put("mul", x, x), axes)
        result = out.put("sqrt", square) if kind == "ReduceL2" else square
    elif kind == "ReduceL1":
        result = out.reduce("sum", out.put("abs", x), axes)
    elif kind == "ReduceLogSum":
        result = out.put("log", out.reduce("sum", x, axes))
    elif kind == "ReduceLogSumExp":
        largest = out.reduce("max", x, axes)
        finite = out.put("where", out.put("less", out.put("abs", largest), math.inf), largest, 0.0)
        result = out.put(
            "add", finite, out.put("log", out.reduce("sum", out.put("exp", out.put("sub", x, finite)), axes))
        )
    elif kind in ("ReduceMean", "GlobalAveragePool"):
        result = out.mean(x, axes)
    else:
        result = out.reduce(kind.removeprefix("Reduce").lower(), x, axes)
    out.ending(result)


def _softmax(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    axis = attribute(node, "axis", -1)
    axes = [axis - len(out.shape(x[0])) if axis >= 0 else axis]
    centred = out.put("sub", x[0], out.reduce("max", x[0], axes))
    powers = out.put("exp", centred)
    total = out.reduce("sum", powers, axes)
    if node.op_type == "LogSoftmax":
        out.put("sub", centred, out.put("log", total), last=True)
    else:
        out.put("mul", powers, out.put("reciprocal", total), last=True)


def _layer_norm(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    rank, axis = len(out.shape(x[0])), attribute(node, "axis", -1)
    axes = range(axis - rank if axis >= 0 else axis, 0)
    centred = out.put("sub", x[0], out.mean(x[0], axes))
    variance = out.mean(out.put("mul", centred, centred), axes)
    spread = out.put("sqrt", out.put("add", variance, float(attribute(node, "epsilon", 1e-5))))
    normal = out.put("mul", centred, out.put("reciprocal", spread))
    biased = len(x) > 2 and x[2] != ""
    scale = 1.0 if np.all(out.constants.get(node.input[1], 0) == 1) else x[1]
    scaled = out.put("mul", normal, scale, last=not biased)
    if biased:
        out.put("add", scaled, x[2], last=True)


def _spread(node: onnx.NodeProto, out: OperatorBuilder, x: Sequence[OpTerm]) -> None:
    out.spread(x[0], out.values[node.output[0]].shape)


SPECIAL: Mapping[str, Callable[[onnx.NodeProto, OperatorBuilder, Sequence[OpTerm]], object]] = {
    **ACTIVATIONS,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "LayerNormalization": _layer_norm,
    "Not": lambda node, out, x: out.put("sub", 1.0, x[0], last=True),
    "Tile": _spread,
    "Expand": _spread,
    "Where": lambda node, out, x: out.put("where", *x, last=True),
    "Cast": lambda node, out, x: out.put("mul", x[0], 1.0, last=True),
}

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
from veltair.compiler.stitch.stitch_program import OpTerm, Shape, StitchOp, broadcast_shapes
from veltair.types import TensorSpec

BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}
VARIADIC = {"Sum": "add", "Min": "min", "Max": "max"}
_SAME_NAME = ("Exp", "Log", "Sqrt", "Erf", "Tanh", "Sigmoid", "Neg", "Abs", "Reciprocal", "Round")
UNARY = {name: name.lower() for name in _SAME_NAME}
COMPARISONS = {
    "Less": ("less", False),
    "LessOrEqual": ("less_equal", False),
    "Equal": ("equal", False),
    "Greater": ("less", True),
    "GreaterOrEqual": ("less_equal", True),
}  # the operator, and whether its operands are swapped
LOGIC = {"And": "mul", "Or": "max"}  # of ones and zeros
REDUCED = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare", "GlobalAveragePool")
TRUE = {*COMPARISONS, *LOGIC, "Not"}  # their results are booleans


class NodeTranslation:
    """The operators of one node, named after its output. Raises LookupError where the language cannot state it.

    Use::

        out = NodeTranslation(node, values, constants)
        out.put("max", node.input[0], 0.0, last=True)
    """

    def __init__(self, node: onnx.NodeProto, values: Mapping[str, TensorSpec], constants: Mapping[str, NDArray[Any]]):
        self.node, self.values, self.constants = node, values, constants
        self.shapes: dict[str, Shape] = {}
        self.ops: list[StitchOp] = []

    def term(self, name: str) -> OpTerm:
        """An input as an operand: a number where it is a constant of one element."""
        if name in self.constants and self.constants[name].size == 1 and self.constants[name].ndim <= 1:
            return float(self.constants[name].reshape(()))
        return name

    def shape(self, term: OpTerm) -> Shape:
        if not isinstance(term, str):
            return ()
        if term in self.shapes:
            return self.shapes[term]
        return self.constants[term].shape if term in self.constants else self.values[term].shape

    def put(self, kind: str, *terms: OpTerm, last: bool = False) -> str:
        """Appends an element-wise operator; the last one of a node makes its output."""
        shape = broadcast_shapes([self.shape(term) for term in terms])
        if shape is None:
            raise LookupError(kind)
        return self._append(kind, terms, shape, (), last)

    def reduce(self, kind: str, term: OpTerm, axes: Sequence[int], last: bool = False) -> str:
        """Appends a reduction over axes counted from the end; they stay, with extent 1."""
        shape = list(self.shape(term))
        if not axes or any(shape[axis] <= 1 for axis in axes):  # nothing to do, empty, or the batch
            raise LookupError(kind)
        for axis in axes:
            shape[axis] = 1
        return self._append(f"reduce_{kind}", (term,), tuple(shape), tuple(sorted(axes)), last)

    def spread(self, term: OpTerm, shape: Shape) -> str:
        """Broadcasts a value to the shape of the node's output; no extent of 1 becomes the batch."""
        given = self.shape(term)
        given = (1,) * (len(shape) - len(given)) + given
        if broadcast_shapes([given, shape]) != shape or any(
            (d < 0) != (g < 0) for d, g in zip(shape, given, strict=True)
        ):
            raise LookupError("repeated")
        return self._append("mul", (term, 1.0), shape, (), last=True)

    def mean(self, term: OpTerm, axes: Sequence[int], last: bool = False) -> str:
        count = math.prod(self.shape(term)[axis] for axis in axes)
        return self.put("mul", self.reduce("sum", term, axes), 1.0 / max(count, 1), last=last)

    def _append(self, kind: str, terms: Sequence[OpTerm], shape: Shape, axes: tuple[int, ...], last: bool) -> str:
        name = self.node.output[0] if last else f"{self.node.output[0]}/{len(self.ops)}"
        self.shapes[name] = shape
        self.ops.append(StitchOp(name, kind, tuple(terms), shape, axes))
        return name

    def ending(self, name: str) -> None:
        """Makes this value the node's output, under another shape where ONNX drops the reduced axes."""
        shape = self.values[self.node.output[0]].shape
        op = self.ops.pop()
        stored = shape if shape != self.shapes[name] else None
        self.ops.append(StitchOp(self.node.output[0], op.kind, op.terms, op.shape, op.axes, stored))


def translate_node(
    node: onnx.NodeProto, values: Mapping[str, TensorSpec], constants: Mapping[str, NDArray[Any]], opset: int
) -> tuple[StitchOp, ...] | None:
    """The operators of a node; None for a node that is left to other kernels."""
    if len([name for name in node.output if name]) != 1 or not _typed(node, values, constants):
        return None
    out = NodeTranslation(node, values, constants)
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


def _translate(node: onnx.NodeProto, out: NodeTranslation, opset: int) -> None:
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


def _reduction(node: onnx.NodeProto, out: NodeTranslation, x: OpTerm, opset: int) -> None:
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
    elif kind in ("ReduceMean", "GlobalAveragePool"):
        result = out.mean(x, axes)
    else:
        result = out.reduce(kind.removeprefix("Reduce").lower(), x, axes)
    out.ending(result)


def _softmax(node: onnx.NodeProto, out: NodeTranslation, x: Sequence[OpTerm]) -> None:
    axis = attribute(node, "axis", -1)
    axes = [axis - len(out.shape(x[0])) if axis >= 0 else axis]
    centred = out.put("sub", x[0], out.reduce("max", x[0], axes))
    powers = out.put("exp", centred)
    total = out.reduce("sum", powers, axes)
    if node.op_type == "LogSoftmax":
        out.put("sub", centred, out.put("log", total), last=True)
    else:
        out.put("mul", powers, out.put("reciprocal", total), last=True)


def _layer_norm(node: onnx.NodeProto, out: NodeTranslation, x: Sequence[OpTerm]) -> None:
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


def _pow(node: onnx.NodeProto, out: NodeTranslation, x: Sequence[OpTerm]) -> None:
    if x[1] == 0.5:
        out.put("sqrt", x[0], last=True)
    elif x[1] in (2.0, 3.0):
        square = out.put("mul", x[0], x[0], last=x[1] == 2.0)
        if x[1] == 3.0:
            out.put("mul", square, x[0], last=True)
    elif x[1] == -1.0:
        out.put("reciprocal", x[0], last=True)
    else:
        raise LookupError("Pow")


def _clip(node: onnx.NodeProto, out: NodeTranslation, x: Sequence[OpTerm]) -> None:
    low, high = [*x[1:], "", ""][:2]
    if any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high)):
        raise LookupError("Clip")  # ONNX Runtime takes NaN for no bound
    # A bound that is left out is the greatest float (ONNX), which an infinity is beyond.
    limit = float(np.finfo(np.float32).max)
    value = out.put("max", x[0], -limit if low == "" else low)
    out.put("min", value, limit if high == "" else high, last=True)


def _gelu(node: onnx.NodeProto, out: NodeTranslation, x: Sequence[OpTerm]) -> None:
    half = out.put("mul", x[0], 0.5)
    if attribute(node, "approximate", b"none") == b"tanh":
        cube = out.put("mul", out.put("mul", x[0], x[0]), out.put("mul", x[0], 0.044715))
        inner = out.put("tanh", out.put("mul", out.put("add", x[0], cube), math.sqrt(2 / math.pi)))
    else:
        inner = out.put("erf", out.put("mul", x[0], math.sqrt(0.5)))
    out.put("mul", half, out.put("add", inner, 1.0), last=True)


def _hard_sigmoid(node: onnx.NodeProto, out: NodeTranslation, x: Sequence[OpTerm]) -> None:
    swish = node.op_type == "HardSwish"
    alpha, beta = (1 / 6, 0.5) if swish else (attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5))
    line = out.put("add", out.put("mul", x[0], float(alpha)), float(beta))
    gate = out.put("min", out.put("max", line, 0.0), 1.0, last=not swish)
    if swish:
        out.put("mul", x[0], gate, last=True)


def _leaky(node: onnx.NodeProto, out: NodeTranslation, x: Sequence[OpTerm]) -> None:
    slope = float(attribute(node, "alpha", 0.01))
    below = out.put("mul", out.put("min", x[0], 0.0), slope)
    out.put("add", out.put("max", x[0], 0.0), below, last=True)


def _product_of_itself(node: onnx.NodeProto, out: NodeTranslation, x: Sequence[OpTerm]) -> None:
    out.put("mul", x[0], out.put("sigmoid", x[0]), last=True)


def _spread(node: onnx.NodeProto, out: NodeTranslation, x: Sequence[OpTerm]) -> None:
    out.spread(x[0], out.values[node.output[0]].shape)


SPECIAL: Mapping[str, Callable[[onnx.NodeProto, NodeTranslation, Sequence[OpTerm]], object]] = {
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "LayerNormalization": _layer_norm,
    "Pow": _pow,
    "Clip": _clip,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_sigmoid,
    "Swish": _product_of_itself,
    "LeakyRelu": _leaky,
    "Relu": lambda node, out, x: out.put("max", x[0], 0.0, last=True),
    "Not": lambda node, out, x: out.put("sub", 1.0, x[0], last=True),
    "Tile": _spread,
    "Expand": _spread,
    "Where": lambda node, out, x: out.put("where", *x, last=True),
    "Cast": lambda node, out, x: out.put("mul", x[0], 1.0, last=True),
}

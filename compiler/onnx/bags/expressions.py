"""What a tensor of an ONNX graph is computed from, as nested tuples that `match` can take apart.

    ("ReduceSum", ("Gather", "table", ("Slice", "ids", begin, end)), 0)

A name is an input, a large constant, or what none of the rules below covers; CONSTANT comes with its values. What
changes no number of a one-dimensional tensor or of a single one is left out: `Identity`, `Cast` between integers,
`Unsqueeze` at axis 0. An input of two dimensions has ("Flat", name), ("Extents", name), of which ("Extent", name, k)
is one and ("Total", name) the product. A name in rows of one length is ("Rows", name, how many), and the sum of each
("RowSums", rows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import onnx
from onnx import TensorProto, numpy_helper

from veltair.compiler.onnx.node_attributes import attribute

Expression: TypeAlias = Any  # str | tuple[Any, ...], which `match` takes apart
CONSTANT, ZEROS = "=", "zeros"  # ("=", (1, 2)) of at most one dimension; ("zeros",): a row of zeros
MOST_DEPTH = 64
MOST_VALUES = 8  # of a constant that is shown with its values
MOST_ZEROS = 1 << 16
INTEGERS = (TensorProto.INT32, TensorProto.INT64)
KINDS = (*INTEGERS, TensorProto.FLOAT, TensorProto.BOOL)


class Expressions:
    """The expressions of one graph. `outer`: of the one that it is inside of.

    >>> node = onnx.helper.make_node("Add", ["x", "one"], ["y"])
    >>> one = numpy_helper.from_array(__import__("numpy").array(1), "one")
    >>> Expressions(onnx.helper.make_graph([node], "g", [], [], [one])).of("y")
    ('Add', 'x', ('=', (1,)))
    """

    def __init__(self, graph: onnx.GraphProto, outer: Expressions | None = None) -> None:
        self._outer = outer
        self._makers = {name: node for node in graph.node for name in node.output if name}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._own = {*self._makers, *self._constants, *(value.name for value in graph.input)}
        self._matrices = {value.name for value in graph.input if len(value.type.tensor_type.shape.dim) == 2}
        self._found: dict[str, Expression] = {}

    def of(self, name: str, depth: int = 0) -> Expression:
        if name not in self._own:
            return self._outer.of(name, depth) if self._outer is not None else name
        if name not in self._found:
            self._found[name] = name  # of a graph that runs in a circle
            self._found[name] = self._expression(name, depth)
        return self._found[name]

    def _expression(self, name: str, depth: int) -> Expression:
        if name in self._constants:
            return _constant(name, self._constants[name])
        node = self._makers.get(name)
        if node is not None and node.op_type == "Split" and depth <= MOST_DEPTH and attribute(node, "axis", 0) == 0:
            given = [self.of(each, depth + 1) for each in node.input]
            return ("Split", *given, [*node.output].index(name)) if len(given) == 2 else name
        if node is None or depth > MOST_DEPTH or len(node.output) != 1 or node.domain not in ("", "ai.onnx"):
            return name
        if node.op_type == "Constant":
            value = attribute(node, "value", None)
            return name if value is None else _constant(name, value)
        if node.op_type == "If":
            return self._branches(node, name, depth)
        if node.input and node.input[0] in self._matrices and node.op_type in MATRIX_RULES:
            return MATRIX_RULES[node.op_type](node, [self.of(each, depth + 1) for each in node.input]) or name
        rule = RULES.get(node.op_type)
        inputs = [self.of(each, depth + 1) for each in node.input if each]
        found = rule(node, inputs) if rule is not None and len(inputs) == len(node.input) else None
        return name if found is None else found

    def _branches(self, node: onnx.NodeProto, name: str, depth: int) -> Expression:
        graphs = [attribute(node, branch, None) for branch in ("then_branch", "else_branch")]
        if any(graph is None or len(graph.output) != 1 for graph in graphs):
            return name
        given = (Expressions(graph, self).of(graph.output[0].name, depth + 1) for graph in graphs)
        return ("If", self.of(node.input[0], depth + 1), *given)


def _constant(name: str, tensor: TensorProto) -> Expression:
    dims, kind = list(tensor.dims), tensor.data_type
    if kind not in KINDS or tensor.data_location == TensorProto.EXTERNAL:
        return name
    if len(dims) < 2 and (dims or [1])[0] <= MOST_VALUES:
        return (CONSTANT, tuple(numpy_helper.to_array(tensor).reshape(-1).tolist()))
    zeros = len(dims) == 2 and dims[0] == 1 and dims[1] <= MOST_ZEROS
    return (ZEROS,) if zeros and not numpy_helper.to_array(tensor).any() else name


def _values(expression: Expression) -> tuple[Any, ...] | None:
    return expression[1] if isinstance(expression, tuple) and expression[0] == CONSTANT else None


def _plain(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    return (node.op_type, *x)


def _first(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    return x[0] if x else None


def _cast(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    to = attribute(node, "to", 0)
    if to in INTEGERS or (to == TensorProto.BOOL and _values(x[0]) is not None):
        return x[0]
    return ("Cast", x[0]) if to == TensorProto.FLOAT else None


def _along_rows(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    """Gather and Concat at axis 0."""
    if attribute(node, "axis", 0) != 0:
        return None
    if node.op_type == "Gather" and len(x) == 2 and isinstance(x[0], tuple) and x[0][0] == "Shape":
        return x[0] if _values(x[1]) == (0,) else None
    if node.op_type == "Gather" and len(x) == 2 and isinstance(x[0], tuple) and x[0][0] == "Extents":
        at = _values(x[1])
        return ("Extent", x[0][1], at[0]) if at in ((0,), (1,)) else None
    if node.op_type == "Gather" and len(x) == 2 and _is_number(x[0]):
        return x[0] if _values(x[1]) == (0,) else None
    return _plain(node, x)


def _slice(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    plain = all(_values(given) == (wanted,) for given, wanted in zip(x[3:], (0, 1), strict=False))
    return ("Slice", *x[:3]) if len(x) >= 3 and plain else None


def _shape(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    """The first extent, of what has one dimension."""
    return ("Shape", x[0]) if attribute(node, "start", 0) == 0 and attribute(node, "end", 1) == 1 else None


def _axes(node: onnx.NodeProto, x: list[Expression]) -> tuple[Any, ...] | None:
    stated = attribute(node, "axes", None)
    return tuple(stated) if stated is not None else _values(x[1]) if len(x) > 1 else None


def _unsqueeze(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    axes = _axes(node, x)
    return x[0] if axes == (0,) and _is_number(x[0]) else ("Unsqueeze", x[0], axes)


def _reshape(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    shape = _values(x[1]) if len(x) == 2 else None
    if shape and len(shape) == 2 and shape[0] > 0 and shape[1] == -1 and isinstance(x[0], str):
        return ("Rows", x[0], shape[0])
    flat = shape == (-1,)
    plain = isinstance(x[0], str) or x[0][0] in ("Flat", "Split", "Slice") or _is_number(x[0])
    return x[0] if flat and plain else None


def _is_number(x: Expression) -> bool:
    """Whether it is one number, as far as it is one of what places are computed from."""
    if isinstance(x, tuple) and x[0] == "Gather":
        return isinstance(x[1], tuple) and x[1][0] != "Rows" and len(_values(x[2]) or ()) == 1
    return isinstance(x, tuple) and x[0] in ("Shape", "Add", "Sub", "Extent", "Total", CONSTANT)


def _reduce(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    axes, kept = _axes(node, x), attribute(node, "keepdims", 1)
    if axes in ((1,), (-1,)) and not kept and node.op_type == "ReduceSum" and x[0][0] == "Rows":
        return ("RowSums", x[0])
    return (node.op_type, x[0], kept) if axes == (0,) else None


def _product(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    whole = len(x) == 1 and isinstance(x[0], tuple) and x[0][0] == "Extents" and _axes(node, x) is None
    return ("Total", x[0][1]) if whole else None


def _squeeze(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    match x[0] if x else None:
        case ("Slice", whole, (_, (int(first),)), (_, (int(last),))) if last == first + 1:
            return ("Gather", whole, (CONSTANT, (first,)))
        case number if _is_number(number):
            return number
    return None


def _extents(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    if attribute(node, "start", 0) != 0:
        return None
    return (
        ("Extents", x[0])
        if attribute(node, "end", 2) == 2
        else ("Extent", x[0], 0)
        if attribute(node, "end", 2) == 1
        else None
    )


def _flat(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    return ("Flat", x[0]) if len(x) == 2 and _values(x[1]) == (-1,) else None


def _cumsum(node: onnx.NodeProto, x: list[Expression]) -> Expression | None:
    whole = len(x) == 2 and _values(x[1]) == (0,) and not attribute(node, "reverse", 0)
    return ("CumSum", x[0], attribute(node, "exclusive", 0)) if whole else None


Rule: TypeAlias = Callable[[onnx.NodeProto, list[Expression]], Expression | None]
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Less", "Equal", "Greater", "Not", "Expand", "Range", "SequenceInsert"), _plain
    ),
    **dict.fromkeys(("Identity", "CastLike"), _first),
    **dict.fromkeys(("Gather", "Concat"), _along_rows),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax"), _reduce),
    **dict.fromkeys(("Shape", "Size"), _shape),
    "Cast": _cast,
    "Slice": _slice,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "ReduceProd": _product,
    "CumSum": _cumsum,
    "SequenceEmpty": _plain,
}
MATRIX_RULES: Mapping[str, Rule] = {  # of an input of two dimensions
    "Shape": _extents,
    "Size": lambda _, x: ("Total", x[0]),
    "Reshape": _flat,
}

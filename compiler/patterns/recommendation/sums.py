"""Sums whose inputs need not exist: sums of one-hot vectors, and of concatenated tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.recommendation import ConcatSumParameters, OneHotSumParameters
from veltair.compiler.onnx.node_attributes import attribute, product_of, reduced_axes
from veltair.compiler.patterns.matmul import dense_constants

REDUCTIONS = ("ReduceSum", "ReduceMean")


@dataclass(frozen=True, slots=True)
class OneHotSumMatch:
    """One-hot vectors of some columns, summed and concatenated; then perhaps times a matrix, plus a bias.

    >>> OneHotSumMatch(("ids",), (5,), (1.0,), "counts", ()).table is None
    True
    """

    ids: tuple[str, ...]
    depths: tuple[int, ...]
    scales: tuple[float, ...]
    output: str
    inner: tuple[onnx.NodeProto, ...]  # all nodes but the last
    table: NDArray[Any] | None = None
    bias: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class ConcatSumMatch:
    """A sum over the axis that pieces were concatenated along.

    >>> ConcatSumMatch(("a", "b"), axis=1, scale=0.5).pieces
    ('a', 'b')
    """

    pieces: tuple[str, ...]
    axis: int
    scale: float


def find_sums(view: ModelView) -> Matches:
    """Match each one-hot sum and each sum of concatenated tensors, at their last nodes."""
    matches = Matches()
    starts: dict[str, OneHotSumMatch] = {}  # by output
    for node in view.nodes:
        if node.op_type == "OneHot" and (found := _match_one_hot(node, view)) is not None:
            starts[found.output] = found
    for node in view.nodes:
        if node.op_type != "Concat":
            continue
        flat = len(view.shape_of(node.output[0])) == 2 and attribute(node, "axis", 0) in (1, -1)
        if flat and all(name in starts and view.only_user(name) for name in node.input):
            side = _concatenated(node, [starts.pop(name) for name in node.input], view)
            starts[side.output] = side
        else:
            _match_concat_sum(node, view, matches)
    for start in starts.values():
        user = view.only_user(start.output)
        found = (_multiplied(user, start, view) if user is not None else None) or start
        matches.add(view.makers[found.output], found, found.inner)
    return matches


def sums(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Emit "one_hot_sum" or "concat_sum"."""
    if counted := view.matches.at(node, OneHotSumMatch):
        return _emit_one_hot_sum(node, counted, view, builder)
    if joined := view.matches.at(node, ConcatSumMatch):
        return _emit_concat_sum(node, joined, view, builder)
    return False


def _emit_one_hot_sum(node: onnx.NodeProto, found: OneHotSumMatch, view: ModelView, builder: GraphBuilder) -> bool:
    shape = view.shape_of(found.output)
    rows = shape[0]
    inputs = []
    for name in found.ids:
        ids = builder.to_row_major(name)
        inputs.append(builder.reshape(ids, (rows, product_of(ids.shape[1:]))))
    parameters = OneHotSumParameters(found.depths, found.scales)
    lookups = sum(tensor.shape[1] for tensor in inputs)
    weights: dict[str, NDArray[Any]] = {}
    if found.table is not None and found.bias is not None:
        weights = {"table": np.ascontiguousarray(found.table, np.float32), "bias": found.bias.astype(np.float32)}
    y = Activation(f"{found.output}/sums", "float32", (rows, product_of(shape[1:])))
    flops = abs(rows) * lookups * (y.shape[1] if weights else 1)
    builder.emit(node.name, "one_hot_sum", inputs, [y], parameters, weights, flops)
    builder.alias(Activation(found.output, y.dtype, shape), y.name)
    return True


def _emit_concat_sum(node: onnx.NodeProto, found: ConcatSumMatch, view: ModelView, builder: GraphBuilder) -> bool:
    shape = view.shape_of(node.output[0])
    inputs = []
    for name in found.pieces:
        piece = builder.rows(name)
        inputs.append(
            builder.reshape(piece, (product_of(piece.shape[: found.axis]), product_of(piece.shape[found.axis :])))
        )
    width = product_of(view.shape_of(found.pieces[0])[found.axis + 1 :])
    y = Activation(f"{node.output[0]}/sums", "float32", (inputs[0].shape[0], width))
    flops = sum(abs(product_of(tensor.shape)) for tensor in inputs)
    builder.emit(node.name, "concat_sum", inputs, [y], ConcatSumParameters(found.scale), {}, flops)
    builder.alias(Activation(node.output[0], y.dtype, shape), y.name)
    return True


def _match_one_hot(node: onnx.NodeProto, view: ModelView) -> OneHotSumMatch | None:
    """A OneHot along the last axis, and the sum over the axis before it."""
    ids, depth, values = (view.constants.get(name) for name in node.input)
    shape = view.shape_of(node.output[0])
    kinds = view.values[node.input[0]].dtype, view.values[node.output[0]].dtype
    if ids is not None or depth is None or values is None or kinds not in (("int64", "float32"), ("int32", "float32")):
        return None
    if values[0] != 0 or len(shape) not in (2, 3) or attribute(node, "axis", -1) not in (-1, len(shape) - 1):
        return None
    start = OneHotSumMatch((node.input[0],), (shape[-1],), (float(values[1]),), node.output[0], ())
    if len(shape) == 2:
        return start
    user = view.only_user(node.output[0])
    if user is None or _summed_axis(user, 3, view) != 1:
        return None
    scale = start.scales[0] / (shape[1] if user.op_type == "ReduceMean" else 1)
    return replace(start, scales=(scale,), output=user.output[0], inner=(node,))


def _concatenated(node: onnx.NodeProto, parts: Sequence[OneHotSumMatch], view: ModelView) -> OneHotSumMatch:
    inner = [n for part in parts for n in (*part.inner, view.makers[part.output])]
    ids, depths, scales = (tuple(x for p in parts for x in getattr(p, k)) for k in ("ids", "depths", "scales"))
    return OneHotSumMatch(ids, depths, scales, node.output[0], tuple(inner))


def _multiplied(user: onnx.NodeProto, found: OneHotSumMatch, view: ModelView) -> OneHotSumMatch | None:
    """The match with the product behind it, if that has a constant matrix and a constant bias for each column."""
    if user.op_type not in ("MatMul", "Gemm") or user.input[0] != found.output:
        return None
    constants = dense_constants(user, view)
    if constants is None or len(view.shape_of(found.output)) != 2:
        return None
    table, bias = constants
    inner = (*found.inner, view.makers[found.output])
    return replace(found, output=user.output[0], inner=inner, table=table, bias=bias)


def _match_concat_sum(node: onnx.NodeProto, view: ModelView, matches: Matches) -> None:
    """A Concat whose one reader sums over its axis."""
    user, shape = view.only_user(node.output[0]), view.shape_of(node.output[0])
    axis = attribute(node, "axis", 0) % len(shape)
    if user is None or not axis or _summed_axis(user, len(shape), view) != axis:
        return
    kinds = {view.values[name].dtype for name in node.input}
    if kinds != {"float32"} or any(name in view.constants for name in node.input):
        return
    scale = 1.0 / shape[axis] if user.op_type == "ReduceMean" else 1.0
    matches.add(user, ConcatSumMatch(tuple(node.input), axis, scale), [node])


def _summed_axis(node: onnx.NodeProto, rank: int, view: ModelView) -> int | None:
    """The one axis that a node sums or averages over."""
    if node.op_type not in REDUCTIONS:
        return None
    axes = reduced_axes(node, view.constants)
    return axes[0] % rank if len(axes) == 1 else None

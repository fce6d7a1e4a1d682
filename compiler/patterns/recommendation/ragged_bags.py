"""Bags that differ in length, as `compiler.onnx.bags` writes them in standard operators.

rows     Gather(table, ids), or these times weights
inside   Less(places, lengths), or Unsqueeze(Not(Equal(ids, padding))), or And of both
number   lengths, or with padding ReduceSum(Cast(inside))

sums     ReduceSum(Where(inside, rows, 0))
means    Squeeze(Div(ReduceSum(Where(inside, rows, 0)), Cast(Max(number, 1))))
maxima   Squeeze(Where(Less(0, number), ReduceMax(Where(inside, rows, -inf)), 0))
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from onnx import NodeProto

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.recommendation import LookupFamily, Reduction
from veltair.compiler.onnx.node_attributes import reduced_axes
from veltair.compiler.patterns.recommendation.lookup_match import (
    LookupMatch,
    both_orders,
    gather_of,
    is_float,
    reduces_axis,
    sole_producer,
)

# operators that bags of the same ids may have in common
SHARED = ("Less", "Cast", "Max", "ReduceSum", "And", "Not", "Equal", "Unsqueeze")


def match_ragged_bags(node: NodeProto, view: ModelView) -> LookupMatch | None:
    """The bags that end with this node."""
    if node.op_type == "ReduceSum":
        found = _match_rows(node, view, keepdims=0, nothing=0.0)
        return found[0] if found is not None else None
    if node.op_type != "Squeeze" or reduced_axes(node, view.constants) not in ([1], [-2]):
        return None
    return _match_mean(node, view) or _match_maximum(node, view)


def _match_mean(node: NodeProto, view: ModelView) -> LookupMatch | None:
    mean = sole_producer(node.input[0], "Div", view)
    total = None if mean is None else sole_producer(mean.input[0], "ReduceSum", view)
    count = None if mean is None else view.makers.get(mean.input[1])
    some = view.makers.get(count.input[0]) if count is not None and count.op_type == "Cast" else None
    found = None if total is None else _match_rows(total, view, keepdims=1, nothing=0.0)
    if mean is None or total is None or some is None or some.op_type != "Max" or found is None or len(some.input) != 2:
        return None
    match, inside = found
    if not any(
        _is_number(least, 1, view) and _counts(number, match, inside, view) for least, number in both_orders(some)
    ):
        return None
    return replace(match, inner=(*match.inner, mean, total), reduce=Reduction.MEAN)


def _match_maximum(node: NodeProto, view: ModelView) -> LookupMatch | None:
    kept = sole_producer(node.input[0], "Where", view)
    most = None if kept is None else sole_producer(kept.input[1], "ReduceMax", view)
    some = None if kept is None else view.makers.get(kept.input[0])
    found = None if most is None else _match_rows(most, view, keepdims=1, nothing=-math.inf)
    if kept is None or most is None or some is None or found is None or some.op_type != "Less":
        return None
    match, inside = found
    zeros = _is_number(kept.input[2], 0, view) and _is_number(some.input[0], 0, view)
    if not zeros or not _counts(some.input[1], match, inside, view):
        return None
    return replace(match, inner=(*match.inner, kept, most), reduce=Reduction.MAX)


def _match_rows(node: NodeProto, view: ModelView, keepdims: int, nothing: float) -> tuple[LookupMatch, str] | None:
    """The sum of bags whose rows this node reduces, and the tensor that says which of them count."""
    kept = sole_producer(node.input[0], "Where", view)
    if kept is None or not reduces_axis(node, view, axis=1, keepdims=keepdims):
        return None
    inside, rows, other = kept.input
    if not _is_number(other, nothing, view):
        return None
    product, weights = sole_producer(rows, "Mul", view), list[str]()
    inner = [kept]
    if product is not None:
        rows, *weights = product.input
        inner.append(product)
    gather = gather_of(rows, view)
    if gather is None or view.only_user(rows) is None:
        return None
    ids = view.values[gather.input[1]]
    if len(ids.shape) != 2 or not all(is_float(name, (*ids.shape, 1), view) for name in weights):
        return None
    condition = _condition(inside, ids.name, view)
    if condition is None:
        return None
    lengths, padding = condition
    inputs = (ids.name, *lengths, *weights)
    family = LookupFamily.RAGGED_BAG
    match = LookupMatch(inputs, (gather.input[0],), family, (gather, *inner), reduce=Reduction.SUM, padding=padding)
    return match, inside


def _condition(name: str, ids: str, view: ModelView) -> tuple[tuple[str, ...], int | None] | None:
    """The lengths of the bags, if they have any, and the id that counts as none, if one does."""
    node = view.makers.get(name)
    if node is None:
        return None
    if node.op_type == "And":
        parts = [_condition(each, ids, view) for each in node.input]
        known = [part for part in parts if part is not None]
        lengths = [part[0] for part in known if part[0]]
        paddings = [part[1] for part in known if part[1] is not None]
        whole = len(known) == 2 and len(lengths) == len(paddings) == 1
        return (lengths[0], paddings[0]) if whole else None
    if node.op_type == "Less":
        found = _lengths(node, ids, view)
        return None if found is None else ((found,), None)
    padding = _padding(node, ids, view)
    return None if padding is None else ((), padding)


def _lengths(less: NodeProto, ids: str, view: ModelView) -> str | None:
    places, lengths = view.constants.get(less.input[0]), less.input[1]
    shape = view.values[ids].shape
    counted = view.values[lengths].dtype == "int64" and view.values[lengths].shape == (*shape[:1], 1, 1)
    if places is None or lengths in view.constants or not counted or places.shape != (1, shape[1], 1):
        return None
    return lengths if (places.reshape(-1) == np.arange(shape[1])).all() else None


def _padding(node: NodeProto, ids: str, view: ModelView) -> int | None:
    kept = view.makers.get(node.input[0]) if node.op_type == "Unsqueeze" else None
    same = view.makers.get(kept.input[0]) if kept is not None and kept.op_type == "Not" else None
    if same is None or same.op_type != "Equal" or reduced_axes(node, view.constants) not in ([2], [-1]):
        return None
    for given, other in both_orders(same):
        constant, cast = view.constants.get(other), view.makers.get(given)
        given = cast.input[0] if cast is not None and cast.op_type == "Cast" else given
        if given == ids and constant is not None and constant.size == 1:
            return int(constant.reshape(-1)[0])
    return None


def _counts(name: str, match: LookupMatch, inside: str, view: ModelView) -> bool:
    """Whether a tensor holds the number of ids that count in each bag."""
    if match.padding is None:
        return len(match.inputs) > 1 and name == match.inputs[1]
    node = view.makers.get(name)
    ones = view.makers.get(node.input[0]) if node is not None and node.op_type == "ReduceSum" else None
    if node is None or ones is None or ones.op_type != "Cast" or ones.input[0] != inside:
        return False
    return reduces_axis(node, view, axis=1, keepdims=1) and view.values[name].dtype == "int64"


def _is_number(name: str, number: float, view: ModelView) -> bool:
    constant = view.constants.get(name)
    return constant is not None and constant.size == 1 and constant.reshape(-1)[0] == number

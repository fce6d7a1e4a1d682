"""Lookups that do more than add up rows, as ONNX expresses them: Ember's other families (section 2.2).

    weighted sums   ReduceSum or ReduceMean(Mul(Gather(table, ids), weights)), a sparse matrix times a dense one
    ragged bags     ReduceSum(Where(Less(places, lengths), rows, 0)), rows = Gather(table, ids), or these times
                    weights; for means the sum is divided by Max(lengths, 1), and squeezed
    messages        ReduceSum(Mul(near, Sigmoid(ReduceSum(Mul(near, own))))), of near = Gather(table, ids) and
                    own = Gather(table, selves)
    triples         Neg(ReduceSum(Abs(gap))), or of ReduceL1 or ReduceL2(gap), of gap = Sub(Add(head, relation), tail)

ids, weights (B, L), or (B, L, 1) of weights; selves, and ids of triples, (B,). Each becomes one layer, which
copies no row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto

from veltair.compiler.embedding.row_storage import storage_of
from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.recommendation import LookupFamily, LookupParameters, Reduction
from veltair.compiler.onnx.node_attributes import attribute, reduced_axes
from veltair.compiler.patterns.recommendation.embedding_bags import REDUCTIONS


@dataclass(frozen=True, slots=True)
class LookupMatch:
    """A lookup of one of the families.

    >>> LookupMatch(("ids", "weights"), ("table",), LookupFamily.WEIGHTED_SUM, ()).norm is None
    True
    """

    inputs: tuple[str, ...]  # ids first
    tables: tuple[str, ...]
    family: LookupFamily
    inner: tuple[NodeProto, ...]  # all nodes but the last
    reduce: Reduction | None = None  # of a weighted sum or ragged bags
    norm: int | None = None  # of triples


def find_lookups(view: ModelView) -> Matches:
    matches = Matches()
    for node in view.nodes:
        found = None
        if node.op_type in REDUCTIONS:
            found = _match_ragged_sum(node, view) or _match_messages(node, view) or _match_weighted_sum(node, view)
        elif node.op_type == "Squeeze":
            found = _match_ragged_mean(node, view)
        elif node.op_type == "Neg":
            found = _match_triples(node, view)
        if found is not None:
            matches.add(node, found, found.inner)
    for node in reversed(view.nodes):  # what several bags of the same ids have in common
        users = view.users_of(node.output[0]) if node.op_type in ("Less", "Cast", "Max") else ()
        if users and all(map(matches.is_inner, users)) and node.output[0] not in view.output_names:
            matches.add_inner([node])
    return matches


def lookups(node: NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    found = view.matches.at(node, LookupMatch)
    if found is None:
        return False
    first, *others = found.inputs
    ids = builder.to_row_major(first)
    inputs = [ids]
    for name in others:  # weights are as many as ids; other ids, and lengths, are one a row
        shape = ids.shape if view.values[name].dtype == "float32" else ids.shape[:1]
        inputs.append(builder.reshape(builder.to_row_major(name), shape))
    tables = view.constants
    weights = {f"table{i}": builder.tables.encode(name, tables[name]) for i, name in enumerate(found.tables)}
    dim = view.shape_of(found.tables[0])[1]
    parameters = LookupParameters(
        family=found.family,
        dim=dim,
        reduce=found.reduce,
        norm=found.norm,
        storage=storage_of(weights["table0"]),
        table_bytes=sum(table.nbytes for table in weights.values()),
    )
    y = Activation(node.output[0], "float32", view.shape_of(node.output[0]))
    flops = 2 * dim * abs(ids.shape[0]) * (ids.shape[1] if len(ids.shape) == 2 else 1)
    builder.emit(node.name, "lookups", inputs, [y], parameters, weights, flops)
    return True


def _match_weighted_sum(node: NodeProto, view: ModelView) -> LookupMatch | None:
    product = _sole_producer(node.input[0], "Mul", view)
    if product is None or not _reduces_axis(node, view, axis=1, keepdims=0):
        return None
    for rows, weights in _both_orders(product):
        gather = _gather(rows, view)
        if gather is None or view.only_user(rows) is None or weights in view.constants:
            continue
        ids = view.values[gather.input[1]]
        if len(ids.shape) == 2 and _is_float(weights, (*ids.shape, 1), view):
            family, reduce = LookupFamily.WEIGHTED_SUM, REDUCTIONS[node.op_type]
            return LookupMatch((ids.name, weights), (gather.input[0],), family, (gather, product), reduce=reduce)
    return None


def _match_ragged_sum(node: NodeProto, view: ModelView, keepdims: int = 0) -> LookupMatch | None:
    kept = _sole_producer(node.input[0], "Where", view)
    if kept is None or node.op_type != "ReduceSum" or not _reduces_axis(node, view, axis=1, keepdims=keepdims):
        return None
    condition, rows, nothing = kept.input
    less, zero = view.makers.get(condition), view.constants.get(nothing)
    if less is None or less.op_type != "Less" or zero is None or zero.size != 1 or zero.any():
        return None
    product, weights = _sole_producer(rows, "Mul", view), list[str]()
    inner = [kept]
    if product is not None:
        rows, *weights = product.input
        inner.append(product)
    gather, places, lengths = _gather(rows, view), view.constants.get(less.input[0]), less.input[1]
    if gather is None or view.only_user(rows) is None or places is None or lengths in view.constants:
        return None
    ids = view.values[gather.input[1]]
    counted = view.values[lengths].dtype == "int64" and view.values[lengths].shape == (*ids.shape[:1], 1, 1)
    if len(ids.shape) != 2 or not counted or not all(_is_float(name, (*ids.shape, 1), view) for name in weights):
        return None
    if places.shape != (1, ids.shape[1], 1) or (places.reshape(-1) != np.arange(ids.shape[1])).any():
        return None
    family, inputs = LookupFamily.RAGGED_BAG, (ids.name, lengths, *weights)
    return LookupMatch(inputs, (gather.input[0],), family, (gather, *inner), reduce=Reduction.SUM)


def _match_ragged_mean(node: NodeProto, view: ModelView) -> LookupMatch | None:
    mean = _sole_producer(node.input[0], "Div", view)
    total = None if mean is None else _sole_producer(mean.input[0], "ReduceSum", view)
    count = None if mean is None else view.makers.get(mean.input[1])
    some = view.makers.get(count.input[0]) if count is not None and count.op_type == "Cast" else None
    if mean is None or total is None or count is None or some is None or some.op_type != "Max":
        return None
    found = _match_ragged_sum(total, view, keepdims=1)
    if found is None or len(some.input) != 2 or found.inputs[1] not in some.input:
        return None
    least = next(name for first, name in _both_orders(some) if first == found.inputs[1])
    one = view.constants.get(least)
    if one is None or one.size != 1 or one.reshape(-1)[0] != 1 or reduced_axes(node, view.constants) not in ([1], [-2]):
        return None
    return replace(found, inner=(*found.inner, mean, total), reduce=Reduction.MEAN)


def _match_messages(node: NodeProto, view: ModelView) -> LookupMatch | None:
    product = _sole_producer(node.input[0], "Mul", view)
    if product is None or node.op_type != "ReduceSum" or not _reduces_axis(node, view, axis=1, keepdims=0):
        return None
    for rows, edges in _both_orders(product):
        near, edge = _gather(rows, view), _sole_producer(edges, "Sigmoid", view)
        likeness = None if edge is None else _sole_producer(edge.input[0], "ReduceSum", view)
        if near is None or edge is None or likeness is None or not _reduces_axis(likeness, view, axis=2, keepdims=1):
            continue
        dot = _sole_producer(likeness.input[0], "Mul", view)
        if dot is None or rows not in dot.input or len(view.users_of(rows)) != 2 or rows in view.output_names:
            continue
        own, inner = (
            next(other for first, other in _both_orders(dot) if first == rows),
            [near, edge, likeness, dot, product],
        )
        wider = _sole_producer(own, "Unsqueeze", view)
        if wider is not None and reduced_axes(wider, view.constants) in ([1], [-2]):
            own = wider.input[0]
            inner.append(wider)
        gather = _gather(own, view)
        if gather is None or view.only_user(own) is None or gather.input[0] != near.input[0]:
            continue
        ids, selves = (view.values[each.input[1]] for each in (near, gather))
        one = selves.shape in ((ids.shape[0],), (ids.shape[0], 1))
        if len(ids.shape) == 2 and one and selves.dtype == ids.dtype:
            inputs, tables = (ids.name, selves.name), (near.input[0],)
            return LookupMatch(inputs, tables, LookupFamily.MESSAGE_PASSING, (*inner, gather))
    return None


def _match_triples(node: NodeProto, view: ModelView) -> LookupMatch | None:
    distance = view.makers.get(node.input[0])
    if distance is None or view.only_user(node.input[0]) is None or not _reduces_axis(distance, view, 1, 0):
        return None
    inner, gap = [distance], distance.input[0]
    norm = {"ReduceL1": 1, "ReduceL2": 2, "ReduceSum": 1}.get(distance.op_type)
    if distance.op_type == "ReduceSum":
        size = _sole_producer(gap, "Abs", view)
        if size is None:
            return None
        inner.append(size)
        gap = size.input[0]
    minus = _sole_producer(gap, "Sub", view)
    plus = None if minus is None else _sole_producer(minus.input[0], "Add", view)
    if norm is None or minus is None or plus is None:
        return None
    gathers = {name: _gather(name, view) for name in (*plus.input, minus.input[1])}
    if len(gathers) < 3 or any(found is None or view.only_user(name) is None for name, found in gathers.items()):
        return None
    one, other, tail = (found for found in gathers.values() if found is not None)
    head, kind = (one, other) if one.input[0] == tail.input[0] else (other, one)
    ids = [view.values[each.input[1]] for each in (head, kind, tail)]
    alike = len({(each.shape, each.dtype) for each in ids}) == 1 and len(ids[0].shape) == 1
    kinds = {str(view.constants[each.input[0]].dtype) for each in (head, kind)}
    if head.input[0] != tail.input[0] or not alike or len(kinds) > 1:
        return None
    heads, relations, tails = (each.name for each in ids)
    tables, nodes = (head.input[0], kind.input[0]), (*inner, minus, plus, head, kind, tail)
    return LookupMatch((heads, relations, tails), tables, LookupFamily.KNOWLEDGE_GRAPH, nodes, norm=norm)


def _sole_producer(name: str, kind: str, view: ModelView) -> NodeProto | None:
    """The node of this kind that makes a tensor, of which there is one reader."""
    node = view.makers.get(name)
    return node if node is not None and node.op_type == kind and view.only_user(name) is not None else None


def _both_orders(node: NodeProto) -> tuple[tuple[str, str], tuple[str, str]]:
    first, second = node.input
    return (first, second), (second, first)


def _gather(name: str, view: ModelView) -> NodeProto | None:
    """The Gather that makes a tensor of rows of a constant table by ids that are not."""
    node = view.makers.get(name)
    if node is None or node.op_type != "Gather" or attribute(node, "axis", 0) != 0:
        return None
    table = view.values.get(node.input[0])
    kinds = view.values[node.input[1]].dtype, table.dtype if table is not None else ""
    constant = node.input[0] in view.constants and node.input[1] not in view.constants
    fits = constant and kinds[0] in ("int64", "int32") and kinds[1] == "float32"
    return node if fits and view.constants[node.input[0]].ndim == 2 else None


def _reduces_axis(node: NodeProto, view: ModelView, axis: int, keepdims: int) -> bool:
    if not node.op_type.startswith("Reduce"):
        return False
    rank = len(view.shape_of(node.input[0]))
    axes = [each % rank for each in reduced_axes(node, view.constants)]
    return axes == [axis] and attribute(node, "keepdims", 1) == keepdims


def _is_float(name: str, shape: tuple[int, ...], view: ModelView) -> bool:
    found = view.values.get(name)
    return found is not None and found.dtype == "float32" and found.shape == shape

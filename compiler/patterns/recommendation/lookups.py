"""Lookups that do more than add up rows, as ONNX expresses them: Ember's other families (section 2.2).

    weighted sums   ReduceSum or ReduceMean(Mul(Gather(table, ids), weights)), a sparse matrix times a dense one
    ragged bags     reductions of Where(inside, rows, …), as `ragged_bags` has them
    messages        ReduceSum(Mul(near, Sigmoid(ReduceSum(Mul(near, own))))), of near = Gather(table, ids) and
                    own = Gather(table, selves)
    triples         Neg(ReduceSum(Abs(gap))), or of ReduceL1 or ReduceL2(gap), of gap = Sub(Add(head, relation), tail)

ids, weights (B, L), or (B, L, 1) of weights; selves, and ids of triples, (B,). Each becomes one layer, which
copies no row.
"""

from __future__ import annotations

from onnx import NodeProto

from veltair.compiler.embedding.row_storage import storage_of
from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.recommendation import LookupFamily, LookupParameters
from veltair.compiler.onnx.node_attributes import reduced_axes
from veltair.compiler.patterns.recommendation.embedding_bags import REDUCTIONS
from veltair.compiler.patterns.recommendation.lookup_match import (
    LookupMatch,
    both_orders,
    gather_of,
    is_float,
    reduces_axis,
    sole_producer,
)
from veltair.compiler.patterns.recommendation.ragged_bags import SHARED, match_ragged_bags


def find_lookups(view: ModelView) -> Matches:
    matches, read = Matches(), set[str]()
    for node in view.nodes:
        found = None
        if node.op_type in REDUCTIONS:
            found = match_ragged_bags(node, view) or _match_messages(node, view) or _match_weighted_sum(node, view)
        elif node.op_type == "Squeeze":
            found = match_ragged_bags(node, view)
        elif node.op_type == "Neg":
            found = _match_triples(node, view)
        if found is not None:
            matches.add(node, found, found.inner)
            read.update(found.inputs)
    for node in reversed(view.nodes):  # what several bags of the same ids have in common
        users = view.users_of(node.output[0]) if node.op_type in SHARED else ()
        if users and all(map(matches.is_inner, users)) and node.output[0] not in view.output_names | read:
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
        padding=found.padding,
        storage=storage_of(weights["table0"]),
        table_bytes=sum(table.nbytes for table in weights.values()),
    )
    y = Activation(node.output[0], "float32", view.shape_of(node.output[0]))
    flops = 2 * dim * abs(ids.shape[0]) * (ids.shape[1] if len(ids.shape) == 2 else 1)
    builder.emit(node.name, "lookups", inputs, [y], parameters, weights, flops)
    return True


def _match_weighted_sum(node: NodeProto, view: ModelView) -> LookupMatch | None:
    product = sole_producer(node.input[0], "Mul", view)
    if product is None or not reduces_axis(node, view, axis=1, keepdims=0):
        return None
    for rows, weights in both_orders(product):
        gather = gather_of(rows, view)
        if gather is None or view.only_user(rows) is None or weights in view.constants:
            continue
        ids = view.values[gather.input[1]]
        if len(ids.shape) == 2 and is_float(weights, (*ids.shape, 1), view):
            family, reduce = LookupFamily.WEIGHTED_SUM, REDUCTIONS[node.op_type]
            return LookupMatch((ids.name, weights), (gather.input[0],), family, (gather, product), reduce=reduce)
    return None


def _match_messages(node: NodeProto, view: ModelView) -> LookupMatch | None:
    product = sole_producer(node.input[0], "Mul", view)
    if product is None or node.op_type != "ReduceSum" or not reduces_axis(node, view, axis=1, keepdims=0):
        return None
    for rows, edges in both_orders(product):
        near, edge = gather_of(rows, view), sole_producer(edges, "Sigmoid", view)
        likeness = None if edge is None else sole_producer(edge.input[0], "ReduceSum", view)
        if near is None or edge is None or likeness is None or not reduces_axis(likeness, view, axis=2, keepdims=1):
            continue
        dot = sole_producer(likeness.input[0], "Mul", view)
        if dot is None or rows not in dot.input or len(view.users_of(rows)) != 2 or rows in view.output_names:
            continue
        own, inner = (
            next(other for first, other in both_orders(dot) if first == rows),
            [near, edge, likeness, dot, product],
        )
        wider = sole_producer(own, "Unsqueeze", view)
        if wider is not None and reduced_axes(wider, view.constants) in ([1], [-2]):
            own = wider.input[0]
            inner.append(wider)
        gather = gather_of(own, view)
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
    if distance is None or view.only_user(node.input[0]) is None or not reduces_axis(distance, view, 1, 0):
        return None
    inner, gap = [distance], distance.input[0]
    norm = {"ReduceL1": 1, "ReduceL2": 2, "ReduceSum": 1}.get(distance.op_type)
    if distance.op_type == "ReduceSum":
        size = sole_producer(gap, "Abs", view)
        if size is None:
            return None
        inner.append(size)
        gap = size.input[0]
    minus = sole_producer(gap, "Sub", view)
    plus = None if minus is None else sole_producer(minus.input[0], "Add", view)
    if norm is None or minus is None or plus is None:
        return None
    gathers = {name: gather_of(name, view) for name in (*plus.input, minus.input[1])}
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

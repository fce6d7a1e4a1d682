"""PyTorch's `EmbeddingBag` in its exporters' words: a loop over the bags, which reduces the rows of each.

The TorchScript exporter writes a `Loop` that scans: it cuts the ids of a bag, and looks their rows up. The newer one
looks the rows of all ids up first; its loop cuts the rows, and collects the results in a sequence; with `padding_idx` a
loop inside of it picks them one by one. All begin with where bags begin: the offsets and the number of ids; offsets
that have the last end; sums of lengths; or multiples of the columns of a matrix of ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

from veltair.compiler.onnx.bags.bag_spelling import REDUCTIONS, ExportedBags, bounds_of, ids_of
from veltair.compiler.onnx.bags.expressions import CONSTANT, ZEROS, Expression, Expressions
from veltair.compiler.onnx.bags.skipped_ids import match_skipping
from veltair.compiler.onnx.node_attributes import attribute

ONE = (CONSTANT, (1,))
ZERO = (CONSTANT, (0,))
END = 1 << 31  # an end behind every list


def find_bags(graph: onnx.GraphProto) -> Iterator[ExportedBags]:
    """All of a graph, as far as they are spelled as above."""
    expressions = Expressions(graph)
    joined = {node.input[0]: node for node in graph.node if node.op_type == "ConcatFromSequence" and node.input}
    for node in graph.node:
        body = attribute(node, "body", None) if node.op_type == "Loop" else None
        if body is None:
            continue
        inner = Expressions(body, expressions)
        results = [inner.of(value.name) for value in body.output]
        given = [expressions.of(name) if name else "" for name in node.input]
        if len(node.output) == 1 and len(given) == 2 and len(body.input) == 2 and len(results) == 2:
            ends_early = given[1] not in ("", ONE) or results[0] not in (ONE, body.input[1].name)
            found = None if ends_early else _scanned(node.output[0], given[0], body.input[0].name, results[1])
        elif len(node.output) == 2 and len(given) == 4 and len(body.input) == 4 and len(results) == 3:
            names, outputs = [value.name for value in body.input], list(node.output)
            if given[3] == ZERO:  # the number of the bag behind what is collected
                given[2:], names[2:], results[1:] = given[:1:-1], names[:1:-1], results[:0:-1]
                outputs.reverse()
            found = _collected(joined.get(outputs[1]), given, names, results, inner, body)
        else:
            continue
        if found is not None:
            yield found


def _scanned(output: str, trips: Expression, i: str, result: Expression) -> ExportedBags | None:
    """The loop of the TorchScript exporter. Its condition is always true."""
    match result:
        case (str(reduction), rows, 0) if reduction in REDUCTIONS:
            pass
        case _:
            return None
    weighted: Expression = None
    match rows:
        case ("Mul", rows, ("Unsqueeze", weighted, (1,))):
            pass
    match rows:
        case ("Gather", str(table), ("Slice", ids, begin, stop)):
            pass
        case _:
            return None
    match begin, stop:
        case ("Unsqueeze", ("Gather", bounds, first), (0,)), ("Unsqueeze", ("Gather", ends, last), (0,)):
            pass
        case _:
            return None
    match ends:
        case ("Slice", whole, (_, (1,)), (_, (int(end),))) if whole == bounds and end >= END and first == last == i:
            pass
        case _:
            return None
    if trips != ("Shape", ends):
        return None
    weights: Expression = ""
    match weighted:
        case None:
            pass
        case ("Slice", weights, from_, to) if (from_, to) == (begin, stop):
            pass
        case _:
            return None
    return _bags(output, table, ids, bounds, weights, reduction, empty=reduction == "ReduceSum")


def _collected(
    joined: onnx.NodeProto | None,
    given: list[Expression],
    names: list[str],
    results: list[Expression],
    inner: Expressions,
    body: onnx.GraphProto,
) -> ExportedBags | None:
    """The loop of the exporter that PyTorch calls `dynamo`. Its condition ends it behind the last bag."""
    if joined is None or attribute(joined, "axis", None) != 0 or attribute(joined, "new_axis", 0):
        return None
    i, sequence = names[2:]
    match given, results:
        case (
            ["", ("Less", (_, (0,)), bags), (_, (0,)), ("SequenceEmpty",)],
            [
                ("Less", ("Add", n, (_, (1,))), same_bags),
                ("Add", m, (_, (1,))),
                ("SequenceInsert", into, ("If", ("Equal", begin, stop), (str(zeros),), row)),
            ],
        ) if n == m == i and same_bags == bags and into == sequence and zeros == ZEROS:
            pass
        case _:
            return None
    padding, counted = None, None  # of the mean of the last bag: the ids that are counted
    if skipping := match_skipping(begin, stop, row, i, inner, body):
        reduction, rows, bounds, padding, read = skipping
    else:
        match begin, stop:
            case ("Slice", bounds, at, ("Add", *_) as behind), ("Slice", same, begin_2, ("Add", *_) as behind_2):
                following = ("Add", i, ONE), ("Add", i, (CONSTANT, (2,)))
                if at != i or same != bounds or begin_2 != behind or (behind, behind_2) != following:
                    return None
            case _:
                return None
        read = None
        found = _reduced(row, begin, stop, i, bags)
        if found is None:
            return None
        reduction, rows, counted = found
    weights: Expression = ""
    match rows:
        case ("Mul", rows, ("Unsqueeze", ("Expand", (_, (1.0,)), ("Shape", _)), (1,))):
            pass
        case ("Mul", rows, ("Unsqueeze", weights, (1,))):
            pass
    match rows:
        case ("Gather", str(table), ids):
            pass
        case _:
            return None
    if counted not in (None, ("Shape", ids)) or read not in (None, ids):
        return None
    match bounds:
        case ("Concat", offsets, ("Shape", _)) if bags == ("Shape", offsets):
            pass
        case _ if bags == ("Sub", ("Shape", bounds), ONE):
            pass
        case _:
            return None
    return _bags(joined.output[0], table, ids, bounds, weights, reduction, empty=True, padding=padding)


def _reduced(
    row: Expression, begin: Expression, stop: Expression, i: str, bags: Expression
) -> tuple[str, Expression, Expression] | None:
    """How the rows from `begin` to `stop` are reduced, which rows, and what the last bag ends with, if it has an end of
    its own."""
    match row:
        case ("ReduceSum", ("Slice", rows, from_, to), 1) if (from_, to) == (begin, stop):
            return "ReduceSum", rows, None
        case (
            "ReduceMax",
            ("If", ("Equal", n, ("Sub", m, (_, (1,)))), ("Slice", rows, since, end), ("Slice", same, from_, to)),
            1,
        ):
            whole = (from_, to, since, same, n, m) == (begin, stop, begin, rows, i, bags)
            return ("ReduceMax", rows, end) if whole else None
        case (
            "If",
            ("Equal", n, ("Sub", m, (_, (1,)))),
            (
                "If",
                ("Greater", ("Sub", end, since), (_, (0,))),
                ("Div", sum_, ("Cast", ("Sub", end_2, since_2))),
                other,
            ),
            ("ReduceMean", ("Slice", rows, from_, to) as own, 1),
        ):
            total = ("ReduceSum", own, 1)
            whole = (from_, to, since, since_2, end_2, n, m) == (begin, stop, begin, begin, end, i, bags)
            return ("ReduceMean", rows, end) if whole and sum_ == other == total else None
    return None


def _bags(
    output: str,
    table: str,
    ids: Expression,
    bounds: Any,
    weights: Expression,
    reduction: str,
    *,
    empty: bool,
    padding: int | None = None,
) -> ExportedBags | None:
    """The bags, where their bounds are an input, or sums of one."""
    given = ids_of(ids)
    weighed = ids_of(weights) if weights else ("", given[1]) if given else None
    if given is None or weighed is None or weighed[1] != given[1]:
        return None
    found, rows = bounds_of(bounds, ids, given[1]), given[1]
    if found is None:
        return None
    reduce, of = REDUCTIONS[reduction], (rows.feature, rows.features)
    return ExportedBags(output, table, given[0], *found, weighed[0], reduce, empty, padding, *of)

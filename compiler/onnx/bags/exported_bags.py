"""PyTorch's `EmbeddingBag` in its exporters' words: a loop over the bags, which sums or averages the rows of each.

The TorchScript exporter writes a `Loop` that scans: it cuts the ids of a bag, and looks their rows up. The newer one
looks the rows of all ids up first; its loop cuts the rows, and collects the sums in a sequence. Both begin with where
bags begin: the offsets and the number of ids; offsets that have the last end; or sums of lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx

from veltair.compiler.onnx.bags.expressions import CONSTANT, ZEROS, Expression, Expressions
from veltair.compiler.onnx.node_attributes import attribute
from veltair.profiles.artifact.ragged_inputs import BagForm

ONE = (CONSTANT, (1,))
ZERO = (CONSTANT, (0,))
END = 1 << 31  # an end behind every list


@dataclass(frozen=True, slots=True)
class ExportedBags:
    """The bags that one loop sums. The names are those of the graph's tensors.

    >>> ExportedBags("y", "table", "ids", "offsets", "offsets", "", mean=False, empty=True).weights
    ''
    """

    output: str  # (bags, width)
    table: str
    ids: str
    bounds: str
    form: BagForm
    weights: str  # "": none
    mean: bool
    empty: bool  # whether the loop gives zeros for an empty bag, as PyTorch does; else it divides by 0


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
            found = _collected(joined.get(outputs[1]), given, names, results)
        else:
            continue
        if found is not None:
            yield found


def _scanned(output: str, trips: Expression, i: str, result: Expression) -> ExportedBags | None:
    """The loop of the TorchScript exporter. Its condition is always true."""
    match result:
        case ("ReduceSum" | "ReduceMean" as reduction, rows, 0):
            pass
        case _:
            return None
    weighted: Expression = None
    match rows:
        case ("Mul", rows, ("Unsqueeze", weighted, (1,))):
            pass
    match rows:
        case ("Gather", str(table), ("Slice", str(ids), begin, stop)):
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
    match weighted:
        case None:
            weights = ""
        case ("Slice", str(weights), from_, to) if (from_, to) == (begin, stop):
            pass
        case _:
            return None
    mean = reduction == "ReduceMean"
    return _of_bounds(output, table, ids, bounds, weights, mean=mean, empty=not mean)


def _collected(
    joined: onnx.NodeProto | None, given: list[Expression], names: list[str], results: list[Expression]
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
    match begin, stop:
        case ("Slice", bounds, at, ("Add", *_) as behind), ("Slice", same, begin_2, ("Add", *_) as behind_2):
            following = ("Add", i, ONE), ("Add", i, (CONSTANT, (2,)))
            if at != i or same != bounds or begin_2 != behind or (behind, behind_2) != following:
                return None
        case _:
            return None
    mean = False
    match row:
        case ("ReduceSum", ("Slice", rows, from_, to), 1):
            pass
        case (
            "If",
            ("Equal", number, ("Sub", last, (_, (1,)))),
            of_last,
            ("ReduceMean", ("Slice", rows, from_, to), 1),
        ):
            mean = True
            total = ("ReduceSum", ("Slice", rows, from_, to), 1)
            match of_last:
                case (
                    "If",
                    ("Greater", ("Sub", ("Shape", str()), since), (_, (0,))),
                    ("Div", sum_, ("Cast", count)),
                    other,
                ):
                    whole = count == of_last[1][1] and since == begin and sum_ == other == total
                case _:
                    whole = False
            if not whole or number != i or last != bags:
                return None
        case _:
            return None
    if (from_, to) != (begin, stop):
        return None
    weights = ""
    match rows:
        case ("Mul", rows, ("Unsqueeze", ("Expand", (_, (1.0,)), ("Shape", str())), (1,))):
            pass
        case ("Mul", rows, ("Unsqueeze", str(weights), (1,))):
            pass
    match rows:
        case ("Gather", str(table), str(ids)):
            pass
        case _:
            return None
    if mean and of_last[1][1][1] != ("Shape", ids):
        return None
    match bounds:
        case ("Concat", offsets, ("Shape", _)) if bags == ("Shape", offsets):
            pass
        case _ if bags == ("Sub", ("Shape", bounds), ONE):
            pass
        case _:
            return None
    return _of_bounds(joined.output[0], table, ids, bounds, weights, mean=mean, empty=True)


def _of_bounds(
    output: str, table: str, ids: str, bounds: Any, weights: str, *, mean: bool, empty: bool
) -> ExportedBags | None:
    """The bags, where their bounds are an input, or sums of one."""
    found: tuple[str, BagForm]
    match bounds:
        case str(ends):
            found = ends, "ends"
        case ("Concat", (_, (0,)), ("CumSum", str(lengths), 0)):
            found = lengths, "lengths"
        case ("Concat", ("CumSum", str(lengths), 1), ("Shape", counted)) if counted == ids:
            found = lengths, "lengths"
        case ("Concat", ("Sub", ("CumSum", str(lengths), 0), same), ("Shape", counted)) if counted == ids:
            if same != lengths:
                return None
            found = lengths, "lengths"
        case ("Concat", str(offsets), ("Shape", counted)) if counted == ids:
            found = offsets, "offsets"
        case _:
            return None
    return ExportedBags(output, table, ids, found[0], found[1], weights, mean=mean, empty=empty)

"""The loop inside of the loop over bags that leaves out the ids which equal `padding_idx`."""

from __future__ import annotations

from typing import NamedTuple

import onnx

from veltair.compiler.onnx.bags.bag_spelling import REDUCTIONS
from veltair.compiler.onnx.bags.expressions import CONSTANT, Expression, Expressions
from veltair.compiler.onnx.node_attributes import attribute

NOTHING = (CONSTANT, ())


class SkippingReduction(NamedTuple):
    """How rows are reduced, which, the bounds of the bags, the id that counts as none, and the compared ids."""

    reduction: str
    rows: Expression
    bounds: Expression
    padding: int
    ids: Expression


def match_skipping(
    count: Expression, zero: Expression, row: Expression, i: str, expressions: Expressions, body: onnx.GraphProto
) -> SkippingReduction | None:
    """The reduction of a bag's rows that an inner loop picked. `count`, `zero`: what is compared to see whether there
    are none; i: the number of the bag; `body`: the loop over the bags, with its expressions."""
    match count, zero, row:
        case ("Shape", str(picked)), (_, (0,)), (str(reduction), ("Gather", rows, same), 1) if same == picked:
            pass
        case _:
            return None
    if reduction not in REDUCTIONS:
        return None
    loop = next((node for node in body.node if picked in node.output), None)
    inner = attribute(loop, "body", None) if loop is not None and loop.op_type == "Loop" else None
    if loop is None or inner is None or len(loop.input) != 4 or len(inner.input) != 4 or len(inner.output) != 3:
        return None
    given = [expressions.of(name) if name else "" for name in loop.input]
    names, outputs = [value.name for value in inner.input], list(loop.output)
    within = Expressions(inner, expressions)
    results = [within.of(value.name) for value in inner.output]
    if given[2] == NOTHING:  # what is picked before the place
        given[2:], names[2:], results[1:] = given[:1:-1], names[:1:-1], results[:0:-1]
        outputs.reverse()
    if outputs[1] != picked:
        return None
    j, collected = names[2:]
    match given:
        case ["", ("Less", begin, stop), start, last] if start == begin and last == NOTHING:
            pass
        case _:
            return None
    match begin, stop:
        case ("Gather", bounds, at), ("Gather", same_bounds, ("Add", behind, (_, (1,)))):
            if not (at == behind == i and bounds == same_bounds):
                return None
        case _:
            return None
    match results:
        case [
            ("Less", ("Add", n, (_, (1,))), end),
            ("Add", m, (_, (1,))),
            ("If", ("Not", ("Equal", number, (_, (int(padding),)))), ("Concat", before, place), kept),
        ] if n == m == place == j and before == kept == collected and end == stop:
            pass
        case _:
            return None
    match number:
        case ("If", ("Less", index, (_, (0,))), ("Add", from_end, _), other) if index == from_end == other:
            pass
        case index:
            pass
    match index:
        case ("Gather", ids, at) if at == j:
            return SkippingReduction(reduction, rows, bounds, padding, ids)
    return None

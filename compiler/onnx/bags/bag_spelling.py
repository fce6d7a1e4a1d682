"""What exporters write for the tensors that say which ids a bag has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from veltair.compiler.onnx.bags.expressions import CONSTANT, Expression
from veltair.profiles.artifact.ragged_inputs import BagForm

Spelling: TypeAlias = BagForm | Literal["matrix"]  # of which every row is a bag
BagReduction: TypeAlias = Literal["sum", "mean", "max"]
REDUCTIONS: dict[str, BagReduction] = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max"}


@dataclass(frozen=True, slots=True)
class ExportedBags:
    """The bags that one loop reduces. The names are those of the graph's tensors.

    >>> ExportedBags("y", "table", "ids", "offsets", "offsets", "", "sum", empty=True).weights
    ''
    """

    output: str  # (bags, width)
    table: str
    ids: str
    bounds: str  # of a matrix the number of its columns, where the file says it
    form: Spelling
    weights: str  # "": none
    reduce: BagReduction
    empty: (
        bool  # whether the loop gives zeros for an empty bag, as PyTorch does; else it divides by 0, or has no number
    )
    padding: int | None = None  # an id that counts as none
    feature: int = 0  # whose ids these are, of those that one input holds one after the other
    features: int = 1


class Rows(NamedTuple):
    """One row of the lengths of all features' bags."""

    lengths: str
    features: int
    feature: int


WHOLE = Rows("", 1, 0)


def ids_of(ids: Expression) -> tuple[str, Rows] | None:
    """The input that holds ids or their weights, and of which feature they are."""
    match ids:
        case str(name) | ("Flat", str(name)):
            return name, WHOLE
        case ("Split", str(name), ("Concat", *sizes), feature):
            match sizes[0]:
                case ("Gather", ("RowSums", ("Rows", str(lengths), count)), _):
                    each = [("Gather", ("RowSums", ("Rows", lengths, count)), (CONSTANT, (i,))) for i in range(count)]
                    return (name, Rows(lengths, count, feature)) if sizes == each else None
        case ("Slice", str(name), ("Gather", ends, (_, (int(feature),))), ("Gather", same, (_, (int(following),)))):
            match ends:
                case ("Concat", (_, (0,)), ("CumSum", ("RowSums", ("Rows", str(lengths), count)), 0)):
                    own = same == ends and following == feature + 1 and 0 <= feature < count
                    return (name, Rows(lengths, count, feature)) if own else None
    return None


def bounds_of(bounds: Any, ids: Expression, rows: Rows) -> tuple[str, Spelling] | None:
    """The input that says where bags are, and how. `rows`: the feature that the ids are of."""
    if rows != WHOLE:
        own = ("Gather", ("Rows", rows.lengths, rows.features), (CONSTANT, (rows.feature,)))
        match bounds:
            case ("Concat", (_, (0,)), ("CumSum", lengths, 0)) if lengths == own:
                return rows.lengths, "lengths"
            case ("Concat", ("CumSum", lengths, 1), ("Shape", counted)) if lengths == own and counted == ids:
                return rows.lengths, "lengths"
        return None
    match bounds:
        case str(ends):
            return ends, "ends"
        case ("Concat", (_, (0,)), ("CumSum", str(lengths), 0)):
            return lengths, "lengths"
        case ("Concat", ("CumSum", str(lengths), 1), ("Shape", counted)) if counted == ids:
            return lengths, "lengths"
        case ("Concat", ("Sub", ("CumSum", str(lengths), 0), str(same)), ("Shape", counted)) if counted == ids:
            return (lengths, "lengths") if same == lengths else None
        case ("Concat", str(offsets), ("Shape", counted)) if counted == ids:
            return offsets, "offsets"
        case ("Concat", ("Range", (_, (0,)), total, step), ("Shape", ("Flat", name))) if ids == ("Flat", name):
            match total, step:
                case ("Total", whole), ("Extent", other, 1) if whole == other == name:
                    return "", "matrix"
                case ("Mul", ("Extent", whole, 0), (_, (int(width),))), (_, (same,)) if whole == name and same == width:
                    return str(width), "matrix"
                case ("Extent", whole, 0), one if whole == name and one == (CONSTANT, (1,)):
                    return "1", "matrix"
    return None

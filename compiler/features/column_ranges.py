"""Which indices and ids a column can give, in the terms of range propagation (`index_ranges`)."""

from __future__ import annotations

from veltair.compiler.features.feature_description import FeatureColumn
from veltair.compiler.features.index_ranges import (
    IndexRange,
    IndexStep,
    MapInto,
    RemoveOutside,
    ReplaceOutside,
    propagate_range,
)


def id_range(column: FeatureColumn) -> IndexRange:
    """Range of the ids that a column without a table gives, its pad among them."""
    found = index_range(column).intersection(IndexRange(low=0))
    pad = IndexRange(column.pad, column.pad + 1)
    return pad if found.empty else IndexRange(found.low + column.first_id, found.high + column.first_id).hull(pad)


def index_range(column: FeatureColumn) -> IndexRange:
    """Range of a column's indices, behind its guards."""
    return propagate_range(index_steps(column))[-1]


def index_steps(column: FeatureColumn) -> tuple[IndexStep, ...]:
    """The steps from a column's values to its index: the map of hash, boundaries, …, then its guards."""
    into = IndexRange()
    if column.hash is not None:
        into = IndexRange(0, column.hash)
    elif column.boundaries is not None:
        into = IndexRange(0, len(column.boundaries) + 1)
    elif column.identity is not None or column.vocabulary is not None:
        known = column.identity if column.vocabulary is None else len(column.vocabulary) + column.oov
        assert known is not None
        into = IndexRange(0, known)
        if not column.oov:
            into = into.hull(IndexRange(column.default, column.default + 1))
    steps: list[IndexStep] = [MapInto(into)]
    for guard in column.guards:
        inside = IndexRange(*guard.interval)
        steps.append(RemoveOutside(inside) if guard.remove is not None else ReplaceOutside(inside, guard.value))
    return tuple(steps)

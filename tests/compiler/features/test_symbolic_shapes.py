"""Symbolic extents: what is equal, how large it may be, and where it lies."""

from __future__ import annotations

import pytest

from veltair.compiler.features.feature_description import ColumnInput, Feature, FeatureColumn, FeatureDescription
from veltair.compiler.features.feature_layout import FeatureLayout
from veltair.compiler.features.symbolic_shapes import Extent, MergedBuffer, Symbols, has_one_value
from veltair.errors import InvariantError

BATCH = Extent.from_value("batch")


def test_upper_bounds_are_those_of_the_bounds() -> None:
    symbols = Symbols()
    kept = symbols.new("kept", BATCH * 3 + 1)
    fewer = symbols.new("fewer", kept)
    assert symbols.upper_bound(fewer * 8) == BATCH * 24 + 8
    assert symbols.upper_bound(fewer + kept) == BATCH * 6 + 2
    assert (BATCH * BATCH + 2).at({"batch": 3}) == 11
    with pytest.raises(InvariantError, match="appears twice"):
        symbols.new("kept", BATCH)


def test_features_of_one_value_need_no_reduction() -> None:
    def one(**keys: object) -> bool:
        return has_one_value(Feature(name="f", **keys))  # type: ignore[arg-type]

    assert one(kind="string") and one(kind="int") and one(kind="tokens", truncate=1)
    assert not one(kind="int", width=2) and not one(kind="tokens") and not one(kind="tokens", truncate=2)


def test_one_buffer_holds_all_tensors_apart() -> None:
    symbols = Symbols()
    tokens = symbols.new("tokens", BATCH * 5)
    buffer = MergedBuffer.place({"ids": tokens, "codes": BATCH * 3, "edges": Extent.from_value(7)}, symbols)
    assert buffer.at({"batch": 3}) == ({"ids": 0, "codes": 15, "edges": 24}, 31)


def test_features_lie_where_the_bounds_of_those_before_end() -> None:
    kinds = [
        Feature(name="age", kind="int"),
        Feature(name="word", kind="string", width=2, max_bytes=10),
        Feature(name="list", kind="tokens", max_bytes=100),
        Feature(name="ids", kind="int", width=3),
    ]
    layout = FeatureLayout.from_description(description_of(kinds))
    assert layout.starts == {"age": (0,), "word": (0, 0), "list": (2, 10), "ids": (1,)}
    assert layout.widths == {"ints": 4, "ends": 3, "bytes": 110}


def description_of(features: list[Feature]) -> FeatureDescription:
    """Each feature hashed, in one input."""
    columns = tuple(FeatureColumn(name=f.name, feature=f.name, hash=10, table="t") for f in features)
    joined = (ColumnInput(name="x", columns=tuple(f.name for f in features)),)
    return FeatureDescription(features=tuple(features), columns=columns, inputs=joined)

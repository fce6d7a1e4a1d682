"""Symbolic extents: what is equal, how large it may be, and where it lies."""

from __future__ import annotations

import pytest

from veltair.compiler.features.feature_description import Feature
from veltair.compiler.features.symbolic_shapes import Extent, MergedBuffer, Symbols, has_one_value
from veltair.errors import InvariantError

BATCH = Extent.from_value("batch")


def test_upper_bounds_follow_bounds_and_equalities() -> None:
    symbols = Symbols()
    kept = symbols.new("kept", BATCH * 3 + 1)
    fewer = symbols.new("fewer", kept)
    assert symbols.upper_bound(fewer * 8) == BATCH * 24 + 8
    same = symbols.new("same", BATCH * 100)
    assert symbols.unify(fewer, same) == same and symbols.upper_bound(fewer) == BATCH * 100
    assert symbols.unify(same, kept) == kept and symbols.upper_bound(fewer + same) == BATCH * 6 + 2
    assert (BATCH * BATCH + 2).at({"batch": 3}) == 11
    with pytest.raises(InvariantError, match="cannot be equal"):
        symbols.unify(Extent.from_value(3), Extent.from_value(4))


def test_features_of_one_value_need_no_reduction() -> None:
    def one(**keys: object) -> bool:
        return has_one_value(Feature(name="f", **keys))  # type: ignore[arg-type]

    assert one(kind="string") and one(kind="int") and one(kind="tokens", truncate=1)
    assert not one(kind="int", width=2) and not one(kind="tokens") and not one(kind="tokens", truncate=2)


def test_one_buffer_holds_all_tensors_apart() -> None:
    symbols = Symbols()
    tokens = symbols.new("tokens", BATCH * 5)
    buffer = MergedBuffer.place(
        [("ids", (tokens,), 8), ("rows", (BATCH, Extent.from_value(3)), 4), ("edges", (), 4)], symbols
    )
    assert buffer.at({"batch": 3}) == ({"ids": 0, "rows": 128, "edges": 192}, 256)
    assert buffer.at({"batch": 16})[1] == 640 + 192 + 64

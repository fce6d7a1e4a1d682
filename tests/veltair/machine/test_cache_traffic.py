"""Traffic below a cache by loop levels: bounds, monotony and the exact values at and between the levels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.machine.cache_traffic import LoopLevel, traffic_bytes

NEST = (LoopLevel(64, 0, 1_000_000), LoopLevel(4096, 512, 60_000), LoopLevel(0, 100_000, 20_000))


@st.composite
def nests(draw: st.DrawFn) -> list[LoopLevel]:
    count = draw(st.integers(1, 5))
    needs = sorted(draw(st.lists(st.integers(0, 1 << 20), min_size=count, max_size=count)))
    traffic = sorted(draw(st.lists(st.integers(1, 1 << 30), min_size=count, max_size=count)), reverse=True)
    return [LoopLevel(0, need, moved) for need, moved in zip(needs, traffic, strict=True)]


def test_at_the_needs_and_between() -> None:
    assert traffic_bytes(NEST, 1, 0) == 1_000_000
    assert traffic_bytes(NEST, 1, 64) == 1_000_000
    assert traffic_bytes(NEST, 1, 4608) == 60_000
    assert traffic_bytes(NEST, 2, 8704) == 60_000
    assert traffic_bytes(NEST, 1, (64 + 4608) / 2) == 530_000
    assert traffic_bytes(NEST, 1, 1e9) == 20_000


def test_more_cores_keep_less_in_the_same_cache() -> None:
    assert traffic_bytes(NEST, 8, 4608) > traffic_bytes(NEST, 1, 4608)


@given(nests(), st.floats(0, 1 << 21), st.floats(0, 1 << 21))
def test_more_cache_never_moves_more(nest: list[LoopLevel], a: float, b: float) -> None:
    less, more = sorted((a, b))
    least, most = nest[-1].traffic_bytes, nest[0].traffic_bytes
    assert least <= traffic_bytes(nest, 1, more) <= traffic_bytes(nest, 1, less) <= most


def test_no_level_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one loop level"):
        traffic_bytes((), 1, 0)

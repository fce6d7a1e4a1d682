"""Which points a search proposes next."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from veltair.compiler.graph.layer_spec import Point
from veltair.compiler.tuning.search_plan import find_neighbours, propose_points

GRID: list[Point] = [{"rows": r, "unroll": u} for r in (1, 2, 4, 8) for u in (1, 4, 16)]


def test_neighbours_differ_by_one_step_in_one_coordinate() -> None:
    at = GRID.index({"rows": 2, "unroll": 4})
    assert [GRID[i] for i in find_neighbours(GRID, at)] == [
        {"rows": 1, "unroll": 4},
        {"rows": 2, "unroll": 1},
        {"rows": 2, "unroll": 16},
        {"rows": 4, "unroll": 4},
    ]
    assert [GRID[i] for i in find_neighbours(GRID, 0)] == [{"rows": 1, "unroll": 4}, {"rows": 2, "unroll": 1}]


def test_words_are_neighbours_in_their_order() -> None:
    points: list[Point] = [{"mode": m, "rows": 1} for m in ("flat", "row", "tall")]
    assert find_neighbours(points, 0) == [1]
    assert find_neighbours(points, 1) == [0, 2]


def test_a_small_space_is_measured_whole_and_in_order() -> None:
    assert propose_points(GRID, {}, 12, "w", chunk=5) == [0, 1, 2, 3, 4]
    assert propose_points(GRID, dict.fromkeys(range(10), 9), 12, "w", chunk=5) == [10, 11]
    assert propose_points(GRID, dict.fromkeys(range(12), 9), 12, "w") == []


def test_a_large_space_begins_with_its_default_and_a_sample() -> None:
    first = propose_points(GRID, {}, 6, "w")
    assert first[0] == 0
    assert len(first) == 4  # half of the trials beside the default
    assert first == propose_points(GRID, {}, 6, "w")


def test_then_come_the_neighbours_of_the_best() -> None:
    sample = propose_points(GRID, {}, 8, "w")
    best = sample[2]
    times = {i: 10 if i == best else 100 + i for i in sample}
    wanted = [i for i in find_neighbours(GRID, best) if i not in times]
    assert wanted
    assert propose_points(GRID, times, 8, "w")[: len(wanted)] == wanted


def test_what_looks_promising_comes_first() -> None:
    assert propose_points(GRID, {}, 3, "w", first=(7, 5)) == [7, 5, 0]
    assert propose_points(GRID, {}, 12, "w", chunk=5, first=(7, 5)) == [7, 5, 0, 1, 2]
    sample = propose_points(GRID, {}, 8, "w", first=(7, 5))
    assert sample[:3] == [7, 5, 0]
    assert len(sample) == 5  # with them, no more than without
    assert propose_points(GRID, {7: 1}, 8, "w", first=(7, 5))[:2] == [5, 0]


@given(st.integers(1, 30), st.integers(0, 40), st.integers(1, 8), st.integers(0, 3), st.randoms())
def test_as_many_as_asked_for_none_twice(length: int, trials: int, chunk: int, hints: int, random: Any) -> None:
    points: list[Point] = [{"a": i % 5, "b": i // 5} for i in range(length)]
    first = random.sample(range(length), min(hints, length))
    times: dict[int, int] = {}
    while chosen := propose_points(points, times, trials, "w", chunk, first):
        assert len(chosen) <= chunk
        assert not set(chosen) & set(times)
        for i in chosen:
            times[i] = random.randint(1, 100)
    assert len(times) == min(trials, length)
    assert len(times) <= len(first) or 0 in times
    assert set(first[:trials]) <= set(times)

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from veltair.compiler.tuning.frontier import (
    MAX_LOSS,
    VERSIONS,
    Candidate,
    drop_least_missed,
    extract_dominant,
    fastest_at_each_core_count,
    layer_qos_ns,
    pick_evenly,
    prune_versions,
    select_versions,
)


def candidate(block: int, parallelism: int, *run_ns: int) -> Candidate:
    return Candidate({"block": block, "parallelism": parallelism}, block, parallelism, run_ns or (1,))


sizes = st.integers(1, 12)
times = st.integers(1, 1000)
candidates = st.lists(
    st.builds(lambda b, p, one, two: candidate(b, p, one, two), sizes, sizes, times, times), min_size=1, max_size=30
)


def test_shares_go_by_time_and_sum_to_the_target() -> None:
    assert layer_qos_ns([100, 300], 1000) == [250.0, 750.0]


def test_dominant_ones_are_those_nobody_undercuts_in_both() -> None:
    a, b, c, d = candidate(1, 9), candidate(3, 5), candidate(4, 7), candidate(8, 1)
    assert extract_dominant([d, c, b, a]) == [a, b, d]  # b is smaller than c in both


def test_a_tie_in_one_of_the_two_is_no_domination() -> None:
    tied = [candidate(1, 5), candidate(2, 5), candidate(2, 3)]
    assert extract_dominant(tied) == [tied[0], tied[2], tied[1]]


def test_of_twins_the_fastest_stands_for_all() -> None:
    slow, fast = candidate(2, 2, 90), candidate(2, 2, 30)
    assert extract_dominant([slow, fast]) == [fast]


@given(candidates)
def test_the_frontier_is_what_its_definition_says(found: list[Candidate]) -> None:
    def undercut(c: Candidate) -> bool:
        return any(o.block_size < c.block_size and o.parallelism < c.parallelism for o in found)

    places = {(c.block_size, c.parallelism) for c in found if not undercut(c)}
    frontier = extract_dominant(found)
    assert {(c.block_size, c.parallelism) for c in frontier} == places
    assert [c.block_size for c in frontier] == sorted(c.block_size for c in frontier)
    assert len(frontier) == len(places)


@given(st.integers(0, 40), st.integers(1, 8))
def test_a_spread_has_both_ends_and_no_twins(length: int, count: int) -> None:
    frontier = [candidate(i + 1, 50 - i) for i in range(length)]
    chosen = pick_evenly(frontier, count)
    assert len(chosen) == min(length, count)
    assert [c.block_size for c in chosen] == sorted({c.block_size for c in chosen})
    if length and count > 1:
        assert chosen[0] == frontier[0]
        assert chosen[-1] == frontier[-1]


def test_none_meets_the_qos_so_the_fastest_stays() -> None:
    found = [candidate(1, 9, 500, 400), candidate(5, 5, 300, 200), candidate(9, 1, 900, 800)]
    assert select_versions(found, qos_ns=100) == [found[1]]


def test_the_fastest_stays_although_it_is_off_the_frontier() -> None:
    fast = candidate(9, 9, 10, 5)
    found = [candidate(1, 1, 60, 50), fast]
    assert extract_dominant(found) == [found[0]]
    assert select_versions(found, qos_ns=1000) == [found[0], fast]


def test_a_slow_candidate_is_no_version_however_small() -> None:
    small_but_slow, fine = candidate(1, 1, 999), candidate(5, 5, 10)
    assert select_versions([small_but_slow, fine], qos_ns=20) == [fine]


@given(candidates, st.integers(1, 1200))
def test_versions_are_few_and_hold_the_fastest_of_each_core_count(found: list[Candidate], qos_ns: int) -> None:
    versions = select_versions(found, qos_ns)
    assert 1 <= len(versions) <= VERSIONS
    assert len({id(v) for v in versions}) == len(versions)
    assert all(any(v is c for c in found) for v in versions)
    for column in (0, 1):
        assert min(v.run_ns[column] for v in versions) == min(c.run_ns[column] for c in found)
    fastest = fastest_at_each_core_count(found)
    assert all(v.best_ns <= qos_ns or v in fastest for v in versions)


@given(st.lists(st.lists(times, min_size=12, max_size=12), min_size=1, max_size=20), st.integers(1, 6))
def test_on_many_cores_the_limit_still_holds(rows: list[list[int]], limit: int) -> None:
    found = [candidate(i + 1, 40 - i, *row) for i, row in enumerate(rows)]
    assert 1 <= len(select_versions(found, 10_000, limit)) <= limit


def test_records_of_a_machine_with_fewer_cores_mix_in() -> None:
    found = [candidate(1, 9, 50), candidate(5, 5, 60, 20, 10)]
    assert {c.block_size for c in fastest_at_each_core_count(found)} == {1, 5}


def test_versions_that_are_not_missed_go_and_the_missed_stay() -> None:
    table = np.array([[100.0, 200.0], [104.0, 195.0], [150.0, 120.0]])
    assert prune_versions(table) == [
        0,
        2,
    ]  # 1 is never 10 % better than both others; without 2 the second cell costs 60 %


def test_protected_versions_stay_whatever_they_are_worth() -> None:
    table = np.array([[100.0, 100.0], [99.0, 99.0]])
    assert prune_versions(table) == [1]
    assert prune_versions(table, protected={0}) == [0]
    assert prune_versions(table, protected={0, 1}) == [0, 1]


@given(st.integers(1, 6), st.integers(1, 8), st.data())
def test_pruning_costs_ten_percent_at_most_anywhere(versions: int, cells: int, data: st.DataObject) -> None:
    row = st.lists(times, min_size=cells, max_size=cells)
    table = np.array(data.draw(st.lists(row, min_size=versions, max_size=versions)), dtype=np.float64)
    protected = data.draw(st.sets(st.integers(0, versions - 1)))
    kept = prune_versions(table, protected)
    assert kept == sorted(set(kept))
    assert protected <= set(kept)
    assert (table[kept].min(axis=0) <= table.min(axis=0) * (1 + MAX_LOSS) + 1e-9).all()
    for one in kept:  # nothing more could go
        rest = [k for k in kept if k != one]
        if rest and one not in protected:
            assert (table[rest].min(axis=0) / table.min(axis=0)).max() > 1 + MAX_LOSS


def test_what_costs_just_ten_percent_goes() -> None:
    assert prune_versions(np.array([[10.0, 200.0], [11.0, 100.0]])) == [1]


def test_elimination_keeps_the_most_missed() -> None:
    table = np.array([[10.0, 99.0], [11.0, 98.0], [90.0, 10.0]])
    assert drop_least_missed(table, 2) in ([0, 2], [1, 2])
    assert drop_least_missed(table, 1) != [2] or table[2].max() < 99

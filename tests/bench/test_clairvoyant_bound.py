"""The bound that knows all arrivals: right against a test of every set of queries, and never below a schedule."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.policies.clairvoyant_bound import TenantDemand, can_hold

CORES = 4
Query = tuple[int, int, int]  # arrival, target, core time

queries = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 40)), min_size=1, max_size=5)


def demands(tenants: list[list[Query]], percentile: float) -> list[TenantDemand]:
    """One tenant for each query, since queries of a tenant are alike, unless they are."""
    made = []
    for tenant in tenants:
        arrivals = np.array(sorted(arrival for arrival, _, _ in tenant), np.int64)
        _, target, work = tenant[0]
        made.append(TenantDemand(arrivals, target, float(work), percentile * len(tenant)))
    return made


def fit(chosen: list[Query]) -> bool:
    """Whether all of these can be in time, preempted at will: each set fits between its first arrival and last end."""
    for begin in {arrival for arrival, _, _ in chosen}:
        for end in {arrival + target for arrival, target, _ in chosen}:
            inside = [work for arrival, target, work in chosen if arrival >= begin and arrival + target <= end]
            if sum(inside) > CORES * max(end - begin, 0):
                return False
    return True


@given(queries)
def test_all_queries_can_be_in_time_where_each_set_of_them_fits(wanted: list[Query]) -> None:
    assert can_hold(demands([[each] for each in wanted], 1.0), CORES) == fit(wanted)


@given(st.lists(st.integers(0, 30), min_size=2, max_size=6), st.integers(1, 12), st.integers(1, 40))
def test_a_schedule_that_drops_some_is_never_ruled_out(arrivals: list[int], target: int, work: int) -> None:
    tenant = [(arrival, target, work) for arrival in arrivals]
    most = max((n for n in range(len(tenant) + 1) if any(fit(list(c)) for c in combinations(tenant, n))), default=0)
    assert can_hold(demands([tenant], most / len(tenant)), CORES)


@given(queries, st.integers(2, 4))
def test_arrivals_further_apart_are_no_harder(wanted: list[Query], factor: int) -> None:
    apart = [(arrival * factor, target, work) for arrival, target, work in wanted]
    if can_hold(demands([[each] for each in wanted], 1.0), CORES):
        assert can_hold(demands([[each] for each in apart], 1.0), CORES)


def test_queries_that_warm_up_count_for_nobody() -> None:
    times = np.array([0, 0, 100], np.int64)
    assert can_hold([TenantDemand(times, 10, 40.0, wanted=1.0, counts_from_ns=50)], CORES)
    assert not can_hold([TenantDemand(times, 10, 40.0, wanted=2.0, counts_from_ns=50)], CORES)
    assert not can_hold([TenantDemand(times, 10, 41.0, wanted=1.0, counts_from_ns=50)], CORES)

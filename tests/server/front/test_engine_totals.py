"""Counts of engines that come and go add up, and none goes back."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from veltair.server.front.counts.engine_totals import EngineTotals
from veltair.server.ipc.status_records import Executions, TenantStatus

runs = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("12"), st.integers(1, 8), st.booleans()), max_size=30)


@given(st.lists(runs, max_size=4))
def test_totals_are_all_that_was_told(engines: list[list[tuple[str, str, int, bool]]]) -> None:
    totals, expected = EngineTotals(), dict[tuple[str, str, int], int]()
    for engine, ran in enumerate(engines):
        counted = dict[str, dict[str, dict[int, Executions]]]()
        untold = list[tuple[str, str, int]]()
        for tenant, version, samples, asked in ran:
            own = counted.setdefault(tenant, {}).setdefault(version, {})
            own[samples] = own.get(samples, Executions()) + Executions(1, 10)
            untold.append((tenant, version, samples))
            if not asked:  # the engine may die with it
                continue
            done = {name: sum(e.count for v in each.values() for e in v.values()) for name, each in counted.items()}
            told = {name: TenantStatus(done=done[name], running=1, executions=each) for name, each in counted.items()}
            totals.follow_tenants(engine, deepcopy(told))  # a message has objects of its own
            for key in untold:
                expected[key] = expected.get(key, 0) + 1
            untold.clear()
            assert {
                (name, v, size): each.count
                for name, status in totals.tenants.items()
                for v, by_size in status.executions.items()
                for size, each in by_size.items()
            } == expected
            assert sum(status.done for status in totals.tenants.values()) == sum(expected.values())
            assert all(totals.tenants[name].running == 1 for name in told)

"""The peak search: bisection, the median of runs, settling."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.loadgen.peak import HIGHEST, LOWEST, WIDTH, LoadRun, Probe, bisect_scale, describe_cliff, find_peak
from veltair.loadgen.tenant_results import SendLag, TenantOutcomes


def searched(capacity: float) -> tuple[float | None, list[float]]:
    """The result of a search where every factor up to `capacity` holds, and the factors it tried."""
    search, tried = bisect_scale(), []
    scale = next(search)
    while True:
        tried.append(scale)
        try:
            scale = search.send(scale <= capacity)
        except StopIteration as end:
            return end.value, tried


@given(st.floats(math.log2(LOWEST), math.log2(HIGHEST), exclude_max=True).map(lambda x: 2.0**x))
def test_bisection_brackets_the_capacity(capacity):
    found, tried = searched(capacity)
    assert found is not None
    assert found <= capacity < found * (1 + WIDTH) * (1 + 1e-12)
    assert found in tried
    assert len(tried) == len(set(tried)) <= 2 + 10 + 6


def test_bisection_ends_where_nothing_or_everything_holds():
    assert searched(0) == (None, [2.0**-i for i in range(11)])
    assert searched(math.inf) == (HIGHEST, [2.0**i for i in range(11)])


def test_the_way_up_doubles_from_the_scenarios_own_rates():
    assert searched(5.0)[1][:5] == [1.0, 2.0, 4.0, 8.0, 6.0]
    assert searched(0.3)[1][:4] == [1.0, 0.5, 0.25, 0.375]


def outcomes_of(name: str, offered: int, in_time: int, percentile: float = 0.95) -> TenantOutcomes:
    latency = np.concatenate([np.zeros(in_time, np.int64), np.full(offered - in_time, 10**9)])
    return TenantOutcomes(name, 10**6, percentile, 10**9, offered, 0, 0, offered, latency)


@pytest.mark.parametrize(
    ("missed_at", "in_time", "told"),
    [
        (3.06, 45, "x 3.000 held, and at x 3.060 a was in time for 45.0 %, wanted 95 %"),
        (3.06, 92, None),  # an edge: a little more load, a little too late
        (6.0, 45, None),  # the search has ended before it came near
    ],
)
def test_a_peak_beside_a_collapse_is_unstable(missed_at, in_time, told):
    held = Probe(3.0, (1,), [outcomes_of("a", 100, 97), outcomes_of("b", 100, 96)], SendLag(), held=True)
    missed = Probe(missed_at, (1,), [outcomes_of("b", 100, 96), outcomes_of("a", 100, in_time)], SendLag(), held=False)
    found = describe_cliff(held, missed)
    assert found is None if told is None else told in (found or "")


class Machine:
    """Holds tenant `a` up to one factor and `b` up to another; records the calls."""

    def __init__(self, a: float, b: float) -> None:
        self.capacity = {"a": a, "b": b}
        self.runs: list[tuple[float, int]] = []
        self.settled: list[float] = []

    async def measure(self, scale: float, seed: int):
        self.runs.append((scale, seed))
        offered = round(1000 * scale)
        rows = [
            outcomes_of(name, offered, offered if scale <= most else offered // 2)
            for name, most in self.capacity.items()
        ]
        return LoadRun(rows, SendLag(round(scale * 1000), scale / 100))

    async def settle(self) -> None:
        self.settled.append(self.runs[-1][0])

    def probes(self, seeds=range(5, 8)):
        async def collect():
            return [probe async for probe in find_peak(self.measure, self.settle, seeds)]

        return asyncio.run(collect())


@pytest.mark.parametrize("seeds", [(5,), (5, 6, 7)])
@pytest.mark.parametrize(("a", "b"), [(3.3, 100.0), (100.0, 3.3), (3.3, 3.3)])
def test_every_tenant_must_hold(a, b, seeds):
    probes = Machine(a, b).probes(seeds)
    best = max((p for p in probes if p.held), key=lambda p: p.scale)
    assert 3.3 / (1 + WIDTH) < best.scale <= 3.3
    assert best.qps == pytest.approx(2 * 1000 * best.scale, abs=1)  # both tenants, per second, not per run
    assert best.seeds == seeds[:2]  # of three, two that hold decide
    assert best.lag == SendLag(round(best.scale * 1000), best.scale / 100)


@pytest.mark.parametrize(("count", "runs_that_hold", "runs_that_miss"), [(1, 1, 1), (2, 2, 1), (3, 2, 2), (4, 3, 2)])
def test_each_factor_is_tried_with_the_same_seeds_until_most_of_them_agree(count, runs_that_hold, runs_that_miss):
    machine = Machine(3.3, 3.3)
    for probe in machine.probes(range(5, 5 + count)):
        seeds = [seed for scale, seed in machine.runs if scale == probe.scale]
        run = runs_that_hold if probe.held else runs_that_miss
        assert tuple(seeds) == probe.seeds == tuple(range(5, 5 + run))


class DisturbedMachine(Machine):
    """Another process takes the cores in the runs of one seed."""

    def __init__(self, seed: int, in_time: int) -> None:
        super().__init__(3.3, 3.3)
        self.seed, self.in_time = seed, in_time

    async def measure(self, scale: float, seed: int):
        run = await super().measure(scale, seed)
        disturbed = [outcomes_of("a", 1000, self.in_time), outcomes_of("b", 1000, 1000)]
        return run._replace(tenants=disturbed) if seed == self.seed else run


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_one_run_of_three_decides_nothing(seed):
    for in_time in (0, 1000):
        best = max((p for p in DisturbedMachine(seed, in_time).probes() if p.held), key=lambda p: p.scale)
        assert 3.3 / (1 + WIDTH) < best.scale <= 3.3


def test_the_median_run_is_shown():
    first = DisturbedMachine(6, 960).probes()[0]
    assert first.held
    assert [t.in_time for t in first.tenants] == [960, 1000]
    last = next(p for p in DisturbedMachine(6, 940).probes() if not p.held)
    assert [t.in_time for t in last.tenants] == [940, 1000]


def test_the_daemon_settles_after_each_probe_that_failed_and_only_then():
    machine = Machine(3.3, 3.3)
    assert machine.settled == []
    probes = machine.probes()
    assert machine.settled == [p.scale for p in probes if not p.held] != []


def test_a_daemon_that_never_holds():
    probes = Machine(0, 100).probes()
    assert not any(p.held for p in probes)
    assert probes[-1].scale == LOWEST

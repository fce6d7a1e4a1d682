"""Who gets cores that fall idle while nobody waits for any."""

import pytest
from scheduler_builders import arrives

from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    FinishQuery,
    GrowBlock,
    StartBlock,
    StopBlock,
)
from veltair.scheduler.invariants import find_violations

MS = 1_000_000
EIGHTHS = tuple(ms * MS // 10 for ms in (800, 400, 267, 200, 160, 134, 115, 100))  # on 1 … 8 cores: all pay
SHORT = tuple(ns // 1000 for ns in EIGHTHS)  # too short for any change to be worth it


@pytest.fixture
def three(build):
    """Runs a query on six cores, which ends first, and two on one core each."""

    def make(times=EIGHTHS):
        scale = times[0] // 80
        scheduler = build(("a", 9000 * scale, 1, 10), ("b", 1000 * scale, 1, 10), cores=8, times=times)
        arrives(scheduler, 1, 0, "a")
        cores, now_ns = {}, 0
        for query in (2, 3):
            now_ns += scale
            decisions = arrives(scheduler, query, now_ns, "b")
            now_ns += scale
            decisions += scheduler.handle(BlockFinished(now_ns, 1, query - 1, 2 * scale))
            cores |= {each.block.query: len(each.core_set) for each in decisions if isinstance(each, StartBlock)}
        assert cores == {1: 6, 2: 1, 3: 1}
        return scheduler, now_ns

    return make


def test_the_block_that_ends_last_gets_them(three):
    scheduler, now_ns = three()
    end, grow = scheduler.handle(BlockFinished(now_ns + 10 * MS, 1, 10, 10 * MS))
    assert end == FinishQuery(1)
    assert isinstance(grow, GrowBlock)
    assert (grow.query, len(grow.core_set)) == (3, 7)
    scheduler.handle(BlockGrown(now_ns + 11 * MS, 3, 1, grow.core_set))
    assert not list(find_violations(scheduler.state))
    run = scheduler.state.in_flight[3].run
    assert run.ends_ns - now_ns - 11 * MS == 9 * EIGHTHS[6]
    assert not scheduler.state.wants_cores  # it has more than it wanted


def test_they_are_taken_back_for_who_needs_them(three):
    scheduler, now_ns = three()
    _, grow = scheduler.handle(BlockFinished(now_ns + 10 * MS, 1, 10, 10 * MS))
    scheduler.handle(BlockGrown(now_ns + 11 * MS, 3, 1, grow.core_set))
    assert arrives(scheduler, 4, now_ns + 12 * MS, "b") == [StopBlock(3)]


def test_work_counts_as_before_until_they_are_taken_up(three):
    scheduler, now_ns = three()
    scheduler.handle(BlockFinished(now_ns + 10 * MS, 1, 10, 10 * MS))
    (decision,) = arrives(scheduler, 4, now_ns + 12 * MS, "b")  # 800 ms are left on one core, and not on seven
    assert decision == StopBlock(3)


def test_a_short_rest_stays_where_it_is(three):
    scheduler, now_ns = three(SHORT)
    assert scheduler.handle(BlockFinished(now_ns + 10_000, 1, 10, 10_000)) == [FinishQuery(1)]


def test_few_more_cores_are_no_reason_to_grow(build):
    rows = ("a", 9000 * MS, 1, 10), ("b", 330 * MS, 1, 10), ("c", 9000 * MS, 1, 1)
    scheduler = build(*rows, cores=5, times=EIGHTHS[:5])
    arrives(scheduler, 1, 0, "b")
    arrives(scheduler, 2, MS, "a")
    scheduler.handle(BlockFinished(16 * MS, 1, 1, 16 * MS))
    assert arrives(scheduler, 3, 17 * MS, "c") == [StopBlock(2)]
    scheduler.handle(BlockFinished(56 * MS, 2, 1, 40 * MS))
    assert [len(active.run.core_set) for active in scheduler.state.in_flight.values()] == [3, 1, 1]
    assert scheduler.handle(BlockFailed(57 * MS, 2, "died")) == []  # four cores for three

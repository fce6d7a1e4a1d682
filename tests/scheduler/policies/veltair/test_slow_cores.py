"""Cores on which other work slows blocks down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_builders import arrives, make_machine, simple_profile, started

from veltair.errors import RefusalReason
from veltair.scheduler.events import BlockFinished, RejectQuery, StartBlock
from veltair.scheduler.policies.veltair.slow_cores import FORGETTING_NS, MOST, SLOW
from veltair.scheduler.scheduler import Scheduler
from veltair.types import QoSTarget, Tenant

MS = 1_000_000
LAYER = (10 * MS, 10 * MS)  # more than one core never pay


@pytest.fixture
def scheduler(build):
    return build(("a", 200 * MS, 1, 1), ("b", 60 * MS, 1, 1), cores=2, times=LAYER)


def core_sets(decisions):
    return {each.block.query: each.core_set for each in decisions if isinstance(each, StartBlock)}


def slow_down(scheduler, block_ms=40):
    """A query of `a` has its block on the first core, where it takes several times as long as on another. Returns the
    time, in ms.
    """
    assert core_sets(arrives(scheduler, 1, 0, "a")) == {1: (0,)}
    scheduler.handle(BlockFinished(block_ms * MS, 1, 1, block_ms * MS))
    return block_ms


def test_a_core_on_which_blocks_take_long_is_handed_out_last(scheduler):
    now_ms = slow_down(scheduler)
    slow = scheduler._policy._slow
    assert slow.cores == (0,)
    assert core_sets(arrives(scheduler, 2, now_ms * MS, "a")) == {2: (1,)}
    assert slow.fast_free(scheduler.state) == 0 and scheduler.state.free == 1


def test_a_query_waits_for_a_better_core_where_it_ends_earlier_so(scheduler):
    now_ms = slow_down(scheduler)
    assert core_sets(arrives(scheduler, 2, now_ms * MS, "a")) == {2: (1,)}
    assert scheduler._policy._slow._ratios[0] > 2  # less than what is left of the other, and the time there
    assert arrives(scheduler, 3, now_ms * MS, "a") == []
    assert core_sets(scheduler.handle(BlockFinished((now_ms + 10) * MS, 2, 1, 10 * MS))) == {3: (1,)}


def test_nobody_waits_for_a_better_core_while_others_wait_for_it(scheduler):
    now_ms = slow_down(scheduler)
    assert core_sets(arrives(scheduler, 2, now_ms * MS, "a")) == {2: (1,)}
    assert arrives(scheduler, 3, now_ms * MS, "a") == []
    assert core_sets(arrives(scheduler, 4, now_ms * MS, "a")) == {3: (0,)}  # the last one of both ends earlier so


def test_it_takes_the_slow_core_where_the_other_is_taken_for_long(scheduler):
    now_ms = slow_down(scheduler, block_ms=25)
    assert core_sets(arrives(scheduler, 2, now_ms * MS, "a")) == {2: (1,)}
    assert SLOW < scheduler._policy._slow._ratios[0] < 2
    assert core_sets(arrives(scheduler, 3, now_ms * MS, "a")) == {3: (0,)}


def test_a_slow_core_is_forgotten_while_others_work(scheduler):
    now_ms = slow_down(scheduler)
    slow = scheduler._policy._slow
    ratio = slow._ratios[0]
    arrives(scheduler, 2, now_ms * MS, "a")
    scheduler.handle(BlockFinished((now_ms + 10) * MS, 2, 1, 10 * MS))
    assert 1 < slow._ratios[0] < ratio
    arrives(scheduler, 3, (now_ms + 20) * MS, "a")
    scheduler.handle(BlockFinished((now_ms + 30) * MS, 3, 1, 20 * FORGETTING_NS))
    assert slow.cores in ((), (1,)) and 0 not in slow._ratios


def test_a_slow_core_counts_as_a_part_of_one_at_admission(scheduler):
    slow = scheduler._policy._slow
    assert slow.capacity(scheduler.state) == 2
    slow_down(scheduler)
    assert slow.capacity(scheduler.state) == pytest.approx(1 + 1 / slow._ratios[0])


@given(st.lists(st.integers(0, 400 * MS), max_size=40))
def test_what_is_known_stays_in_bounds(blocks):
    tenant = Tenant("a", "a", QoSTarget(10_000 * MS))
    scheduler = Scheduler(make_machine(2), [tenant], {"a": [simple_profile(LAYER, model="a")]}, "veltair", 2)
    slow, now_ns = scheduler._policy._slow, 0
    for id, elapsed_ns in enumerate(blocks, 1):
        (core_set,) = core_sets(arrives(scheduler, id, now_ns, "a")).values()
        assert len(slow.cores) == 2 or not set(core_set) & set(slow.cores)
        now_ns += elapsed_ns
        scheduler.handle(BlockFinished(now_ns, id, 1, elapsed_ns))
        assert all(1 < ratio <= MOST for ratio in slow._ratios.values())
        assert slow.cores == tuple(core for core in (0, 1) if slow._ratios.get(core, 1) > SLOW)
        assert 0 < slow.capacity(scheduler.state) <= 2


def test_a_tenant_that_is_shut_out_gets_a_query_in_from_time_to_time(build):
    scheduler = build(("a", 500 * MS, 1, 1), ("b", 60 * MS, 1, 1), times=LAYER)
    assert started(arrives(scheduler, 1, 0, "a")) == [1]
    scheduler._policy._corrections["b"].one_core = scheduler._policy._corrections["b"].several = 5.0
    scheduler._policy._reserve._shares["b"] = 0.8
    assert arrives(scheduler, 2, 1 * MS, "b")[0].reason is RefusalReason.OVERLOAD
    assert isinstance(arrives(scheduler, 3, 240 * MS, "b")[0], RejectQuery)
    assert not [each for each in arrives(scheduler, 4, 241 * MS, "b") if isinstance(each, RejectQuery)]
    assert scheduler._policy._reserve._shares["b"] == 0.4
    assert isinstance(arrives(scheduler, 5, 242 * MS, "b")[0], RejectQuery)


def test_who_cannot_be_in_time_for_the_others_alone_is_refused_while_they_are_there(build):
    scheduler = build(("a", 500 * MS, 1, 1), ("b", 60 * MS, 1, 1), times=LAYER)
    scheduler._policy._corrections["b"].one_core = scheduler._policy._corrections["b"].several = 7.0
    assert started(arrives(scheduler, 1, 0, "b")) == [1]  # nobody is served better by a refusal
    assert arrives(scheduler, 2, 0, "a") == []
    (refused,) = arrives(scheduler, 3, 1, "b")
    assert refused == RejectQuery(3, RefusalReason.OVERLOAD)

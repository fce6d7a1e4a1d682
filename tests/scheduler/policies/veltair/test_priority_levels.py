"""Priority levels of requests: they order the queries of one tenant, and never put a tenant before another."""

import pytest
from scheduler_builders import arrives, make_machine, make_tenant, simple_profile, started

from veltair.errors import RefusalReason
from veltair.scheduler.events import BlockFinished, QueryArrived, QueryCancelled, RejectQuery, StartBlock
from veltair.scheduler.scheduler import Scheduler
from veltair.types import Query


def served(scheduler, first, at, turns):
    """The order in which queries start, each of which ends after 100 ns."""
    order = [first]
    for turn in range(1, turns + 1):
        order += started(scheduler.handle(BlockFinished(at + 100 * turn, order[-1], 1, 100)))
    return order


def test_a_tenants_queries_start_by_level_and_then_by_their_latest_start(build):
    scheduler = build(("a", 9000, 1, 1))
    assert started(arrives(scheduler, 1, 0, "a")) == [1]
    for id, level in ((2, 5), (3, 3), (4, 1), (5, 3), (6, 1), (7, 5)):
        assert arrives(scheduler, id, id, "a", priority_level=level) == []
    assert served(scheduler, 1, 0, 6) == [1, 4, 6, 3, 5, 2, 7]


def test_a_level_does_not_lift_a_query_above_another_tenants(build):
    scheduler = build(("a", 1500, 1, 1), ("b", 1000, 1, 1))
    arrives(scheduler, 1, 0, "a")
    arrives(scheduler, 2, 0, "a", priority_level=1)
    arrives(scheduler, 3, 0, "b", priority_level=5)
    assert served(scheduler, 1, 0, 2) == [1, 3, 2]


def test_one_that_waits_behind_a_higher_level_does_not_lend_it_its_hurry(build):
    scheduler = build(("a", 1500, 1, 1), ("b", 1000, 1, 1))
    arrives(scheduler, 1, 0, "a")
    arrives(scheduler, 2, 0, "a", deadline_ns=800, priority_level=4)  # must start before the one of b
    arrives(scheduler, 3, 0, "a", priority_level=2)
    arrives(scheduler, 4, 0, "b")
    assert served(scheduler, 1, 0, 3) == [1, 4, 3, 2]


def test_a_higher_level_is_not_refused_for_lower_ones_and_a_lower_one_waits_for_all_of_them(build):
    scheduler = build(("a", 500, 1, 1))
    for id in (1, 2, 3):
        arrives(scheduler, id, 0, "a")
    assert arrives(scheduler, 4, 0, "a") == [RejectQuery(4, RefusalReason.OVERLOAD, for_ns=15)]
    assert arrives(scheduler, 5, 0, "a", priority_level=2) == []  # 1.3 x (1, 5)
    assert arrives(scheduler, 6, 0, "a", priority_level=2) == []  # 1.3 x (1, 5, 6)
    [refused] = arrives(scheduler, 7, 0, "a", priority_level=4)
    assert refused.reason is RefusalReason.OVERLOAD
    assert served(scheduler, 1, 0, 4) == [1, 5, 6, 2, 3]


def test_one_that_waits_behind_others_is_refused_at_its_latest_start(build):
    scheduler = build(("a", 500, 1, 1))
    arrives(scheduler, 1, 0, "a")
    arrives(scheduler, 2, 0, "a", priority_level=4)
    arrives(scheduler, 3, 100, "a", priority_level=1)
    decisions = scheduler.handle(BlockFinished(401, 1, 1, 100))  # 400 was the latest for the second
    assert [type(decision).__name__ for decision in decisions] == ["FinishQuery", "RejectQuery", "StartBlock"]
    assert decisions[1] == RejectQuery(2, RefusalReason.OVERDUE) and started(decisions) == [3]


def test_late_queries_go_by_level_within_their_tenant(build):
    scheduler = build(("hopeless", 50, 1, 1), ("too", 50, 1, 1))
    assert started(arrives(scheduler, 1, 0, "hopeless")) == [1]
    for id, name, level in ((2, "hopeless", 4), (3, "too", 3), (4, "hopeless", 1)):
        assert arrives(scheduler, id, id, name, priority_level=level) == []
    assert served(scheduler, 1, 0, 3) == [1, 3, 4, 2]


def test_a_higher_level_that_leaves_makes_way(build):
    scheduler = build(("a", 9000, 1, 1))
    for id, level in ((1, 3), (2, 3), (3, 1)):
        arrives(scheduler, id, 0, "a", priority_level=level)
    assert scheduler.handle(QueryCancelled(50, 3)) == []
    assert served(scheduler, 1, 0, 1) == [1, 2]


@pytest.mark.parametrize("policy", ["veltair", "clockwork"])
def test_a_batch_takes_members_by_their_level(policy):
    profiles = [simple_profile((ns,), batch=batch) for batch, ns in ((1, 100), (2, 120))]
    scheduler = Scheduler(make_machine(1), [make_tenant(9000, batching=True)], {"m": profiles}, policy, 8)
    for id, level in ((1, 3), (2, 5), (3, 4), (4, 2), (5, 1)):
        scheduler.handle(QueryArrived(id, Query(id, "a", id, priority_level=level)))
    batches, leader = [], 1
    for turn in (1, 2):
        decisions = scheduler.handle(BlockFinished(120 * turn, leader, 1, 100))
        [start] = [each for each in decisions if isinstance(each, StartBlock)]
        leader = start.block.query
        batches.append((leader, start.members))
    assert batches == [(5, (4,)), (3, (2,))]


@pytest.mark.parametrize("policy", ["packrat", "parties"])
def test_policies_with_a_queue_for_each_tenant_keep_the_levels(build, policy):
    scheduler = build(("a", 9000, 1, 1), policy=policy)
    arrives(scheduler, 1, 0, "a")
    for id, level in ((2, 5), (3, 3), (4, 1)):
        arrives(scheduler, id, id, "a", priority_level=level)
    assert served(scheduler, 1, 0, 3) == [1, 4, 3, 2]

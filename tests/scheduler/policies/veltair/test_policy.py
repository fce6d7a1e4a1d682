"""The product's policy, event by event."""

import msgspec
import pytest
from scheduler_builders import arrives, make_machine, simple_profile, started, stop_block

from veltair.errors import RefusalReason
from veltair.scheduler.events import (
    BlockFinished,
    FinishQuery,
    GrowBlock,
    QueryArrived,
    RejectQuery,
    StartBlock,
    StopBlock,
)
from veltair.scheduler.policies.veltair.correction import Correction
from veltair.scheduler.scheduler import Scheduler
from veltair.types import LayerBlock, QoSTarget, Query, Tenant


def test_who_must_start_first_goes_first(build):
    scheduler = build(("long", 2000, 1, 1), ("mid", 1500, 1, 1), ("tight", 1000, 1, 1))
    assert started(arrives(scheduler, 1, 0, "long")) == [1]
    for id, name in ((2, "long"), (3, "mid"), (4, "tight")):
        assert arrives(scheduler, id, 0, name) == []
    order = [1]
    for turn in range(1, 5):
        order += started(scheduler.handle(BlockFinished(100 * turn, order[-1], 1, 100)))
    assert order == [1, 4, 3, 2]


def test_priority_divides_the_time_that_a_query_has(build):
    scheduler = build(("low", 1000, 1, 1), ("high", 1500, 2, 1))
    arrives(scheduler, 1, 0, "low")
    arrives(scheduler, 2, 0, "low")
    arrives(scheduler, 3, 0, "high")
    # (1500 - 100 - 100) / 2 is less than 1000 - 100 - 100
    assert started(scheduler.handle(BlockFinished(100, 1, 1, 100))) == [3]


def test_what_the_work_on_hand_would_make_late_is_refused_at_once(build):
    scheduler = build(("a", 500, 1, 1))
    assert started(arrives(scheduler, 1, 0, "a")) == [1]
    assert arrives(scheduler, 2, 0, "a") == []
    assert arrives(scheduler, 3, 0, "a") == []  # 3 x 100 x 1.3 < 500
    assert arrives(scheduler, 4, 0, "a") == [RejectQuery(4, RefusalReason.OVERLOAD, for_ns=15)]  # 20 / 1.3
    assert arrives(scheduler, 5, 15, "a") == [RejectQuery(5, RefusalReason.OVERLOAD)]
    assert arrives(scheduler, 6, 16, "a") == []


def test_a_higher_priority_is_not_refused_for_lower_ones(build):
    scheduler = build(("low", 500, 1, 1), ("high", 500, 2, 1))
    for id in (1, 2, 3):
        arrives(scheduler, id, 0, "low")
    assert arrives(scheduler, 4, 0, "high") == []
    (refused,) = arrives(scheduler, 5, 0, "low")
    assert isinstance(refused, RejectQuery)


def test_a_query_that_would_make_an_admitted_one_late_is_refused(build):
    scheduler = build(("long", 800, 1, 5), ("tight", 400, 1, 1))
    assert started(arrives(scheduler, 1, 0, "long")) == [1]  # 650 of the 800 ns
    assert arrives(scheduler, 2, 0, "tight") == [StopBlock(1)]  # due before it: 780
    (refused,) = arrives(scheduler, 3, 0, "tight")
    assert isinstance(refused, RejectQuery)


def test_a_deadline_of_its_own_that_cannot_be_met_is_refused_on_an_idle_machine(build):
    scheduler = build(("a", 500, 1, 1))
    assert arrives(scheduler, 1, 0, "a", deadline_ns=99) == [RejectQuery(1, RefusalReason.NO_TIME)]
    assert started(arrives(scheduler, 2, 0, "a", deadline_ns=100)) == [2]


def test_a_target_beyond_reach_is_served_after_all_others(build):
    scheduler = build(("hopeless", 50, 1, 1), ("a", 500, 1, 1))
    assert started(arrives(scheduler, 1, 0, "hopeless")) == [1]
    assert arrives(scheduler, 2, 0, "hopeless") == []
    assert arrives(scheduler, 3, 0, "a") == []
    assert started(scheduler.handle(BlockFinished(100, 1, 1, 100))) == [3]
    assert started(scheduler.handle(BlockFinished(200, 3, 1, 100))) == [2]


def test_one_that_waited_past_its_latest_start_is_refused(build):
    scheduler = build(("a", 500, 1, 1))
    for id in (1, 2, 3):
        arrives(scheduler, id, 0, "a")
    finished, refused, *_ = scheduler.handle(BlockFinished(401, 1, 1, 100))
    assert (finished, refused.query) == (FinishQuery(1), 2) and refused.reason is RefusalReason.OVERDUE


def test_on_an_idle_machine_even_a_late_one_is_served(build):
    scheduler = build(("a", 300, 1, 1))
    assert started(scheduler.handle(QueryArrived(250, Query(1, "a", 0)))) == [1]


def test_a_deadline_of_its_own_counts_even_where_it_is_the_end_of_the_target(build):
    scheduler = build(("a", 300, 1, 1))
    (refused,) = scheduler.handle(QueryArrived(250, Query(1, "a", 0, deadline_ns=300)))
    assert refused == RejectQuery(1, RefusalReason.NO_TIME)


def test_a_deadline_after_the_target_reaches_the_policy(build):
    scheduler = build(("hopeless", 50, 1, 1))
    assert started(arrives(scheduler, 1, 0, "hopeless")) == [1]
    assert arrives(scheduler, 2, 0, "hopeless", deadline_ns=150) == []  # late, but 150 ns would do
    assert scheduler.handle(BlockFinished(100, 1, 1, 100)) == [
        FinishQuery(1),
        RejectQuery(2, RefusalReason.NO_TIME),
    ]


def test_a_late_query_that_has_begun_is_put_last_and_given_up_with_its_own_deadline(build):
    scheduler = build(("a", 1000, 1, 3))
    assert started(arrives(scheduler, 1, 0, "a", deadline_ns=1400)) == [1]
    stop_block(scheduler, 1)
    scheduler.handle(BlockFinished(950, 1, 1, 950))  # it is late; nobody else is there
    assert scheduler.state.in_flight[1].run is not None
    stop_block(scheduler, 1)
    (refused,) = scheduler.handle(BlockFinished(1350, 1, 2, 400))
    assert refused == RejectQuery(1, RefusalReason.NO_TIME)


def play_beside_a_flood(scheduler, until_ns):
    """Query 1 is stopped at its first layer when it is late, and one query of tenant `a` arrives after the other, each
    before the one before has ended. Returns when query 1 goes on."""
    assert started(arrives(scheduler, 1, 0, "long")) == [1]
    stop_block(scheduler, 1)
    arrives(scheduler, 2, 790, "a")
    assert started(scheduler.handle(BlockFinished(800, 1, 1, 800))) == [2]
    now_ns = 800
    for id in range(3, until_ns // 100):
        arrives(scheduler, id, now_ns + 50, "a")
        now_ns += 100
        begun = started(scheduler.handle(BlockFinished(now_ns, id - 1, 1, 100)))
        if begun == [1]:
            return now_ns
        assert begun == [id]
    return None


def test_a_late_query_that_has_begun_goes_on_at_last_however_many_come(build):
    scheduler = build(("long", 850, 1, 3), ("a", 1000, 1, 1))
    assert play_beside_a_flood(scheduler, 5000) == 1800  # late by another target: 1700


def test_one_whose_target_is_beyond_reach_is_not_put_before_others(build):
    scheduler = build(("long", 250, 1, 3), ("a", 1000, 1, 1))
    assert play_beside_a_flood(scheduler, 5000) is None


def test_a_hurried_query_stops_the_one_that_can_best_wait(build):
    scheduler = build(("slow", 5000, 1, 10), ("slower", 9000, 1, 10), ("tight", 300, 1, 1), cores=2)
    assert started(arrives(scheduler, 1, 0, "slow")) == [1]
    assert started(arrives(scheduler, 2, 0, "slower")) == [2]
    assert arrives(scheduler, 3, 10, "tight") == [StopBlock(2)]
    assert scheduler.handle(BlockFinished(100, 2, 1, 100)) == [StartBlock(LayerBlock(3, 0, 1, (0,), 1, 100), (1,))]
    # and what was stopped goes on where it stood
    done = scheduler.handle(BlockFinished(200, 3, 1, 100))
    assert [decision.block.start for decision in done if isinstance(decision, StartBlock)] == [1]


def test_nobody_is_stopped_for_a_query_that_can_wait(build):
    scheduler = build(("slow", 5000, 1, 10), ("loose", 4000, 1, 6), ("short", 4000, 1, 1))
    arrives(scheduler, 1, 0, "slow")
    assert arrives(scheduler, 2, 0, "loose") == []
    assert arrives(scheduler, 3, 0, "short") == []  # though it takes a tenth of what it waits for


def test_profiles_are_corrected_by_what_is_measured(build):
    scheduler = build(("a", 400, 1, 1), cores=4)
    for id in range(1, 30):
        (decision,) = arrives(scheduler, id, 1000 * id, "a")
        if decision.block.cores > 1:
            break
        scheduler.handle(BlockFinished(1000 * id + 390, id, 1, 390))
    # 100 x ratio > 0.85 x 400 once the ratio is above 3.4
    assert decision.block.cores > 1 and id > 10


def test_the_correction_is_smoothed_bounded_and_forgotten_for_several_cores(build):
    scheduler = build(("a", 400, 1, 1), cores=2)
    arrives(scheduler, 1, 0, "a")
    run = scheduler.state.in_flight[1].run
    correction = Correction()
    correction.learn(run, 200)
    assert (correction.one_core, correction.several) == pytest.approx((1.1, 1.002))
    correction.several = 8.0
    for _ in range(200):
        correction.learn(run, 100)
    assert correction.several < 1.3
    for _ in range(200):
        correction.learn(run, 10**9)
    assert correction.ratio(1) == pytest.approx(8.0)


def test_a_block_counts_by_its_share_of_the_query(build):
    scheduler = build(("a", 40_000, 1, 100))
    arrives(scheduler, 1, 0, "a")
    run = scheduler.state.in_flight[1].run
    first = LayerBlock(1, 0, 1, run.block.versions[:1], 1, run.block.predicted_ns)
    correction = Correction()
    correction.learn(msgspec.structs.replace(run, block=first), 10**9)
    assert correction.one_core == pytest.approx(1 + 0.1 * 7 / 100)


@pytest.mark.parametrize(("rest_ns", "stop"), [(20, 2), (21, 1)])
def test_a_short_rest_has_no_block_of_its_own(rest_ns, stop):
    long = (980, 490, 610, 600)  # more than two cores do not pay
    rest = (rest_ns,) * 4  # a pivot: it does not do its share of 595 on any cores
    tenant = Tenant("a", "a", QoSTarget(700), 1)
    scheduler = Scheduler(make_machine(4), [tenant], {"a": [simple_profile(long, rest, model="a")]}, "veltair", 8)
    (decision,) = arrives(scheduler, 1, 0, "a")
    assert (decision.block.start, decision.block.stop) == (0, stop)


def test_a_block_on_too_few_cores_to_be_in_time_gets_those_of_who_can_wait():
    long, short = (1200, 600, 400, 800, 800, 800, 800), (300, 150, 100, 75, 60, 50, 43)  # three cores pay, or all do
    profiles = {
        "long": [simple_profile(*[long] * 10, model="long")],
        "short": [simple_profile(*[short] * 3, model="short")],
    }
    tenants = [Tenant("long", "long", QoSTarget(8000)), Tenant("short", "short", QoSTarget(500))]
    scheduler = Scheduler(make_machine(7), tenants, profiles, "veltair", 8)
    assert [len(start.core_set) for query in (1, 2) for start in arrives(scheduler, query, 0, "long")] == [3, 3]
    start, stop = arrives(scheduler, 3, 10, "short")
    assert isinstance(start, StartBlock) and len(start.core_set) == 1 < start.block.cores  # it is due at 510
    assert isinstance(stop, StopBlock) and stop.query in (1, 2)
    grow, again, *_ = scheduler.handle(BlockFinished(400, stop.query, 1, 400))
    assert isinstance(grow, GrowBlock) and grow.query == 3  # before the query that was stopped
    assert isinstance(again, StartBlock) and again.block.query == stop.query and len(again.core_set) == 1

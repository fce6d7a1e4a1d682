"""The state machine itself: lifecycles, what is refused, and what cannot be."""

import pytest
from scheduler_builders import make_machine, make_query, make_tenant, simple_profile, snapshot, stop_block

from veltair.errors import ConfigError, InvariantError, RefusalReason
from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    CancelQuery,
    CountersSampled,
    FinishQuery,
    GrowBlock,
    QueryArrived,
    QueryCancelled,
    QueryRuns,
    RejectQuery,
    StartBlock,
    WorkersChanged,
)
from veltair.scheduler.interference import CounterModel, PredictedDemand
from veltair.scheduler.policies.by_name import POLICIES
from veltair.scheduler.policies.paper import VeltairFull
from veltair.scheduler.policies.serving_order import ServingOrder
from veltair.scheduler.scheduler import Scheduler
from veltair.types import CounterSample, LayerBlock, Machine

LAYERS = ((30, 16), (30, 16), (30, 16))


@pytest.fixture(params=["fcfs", "veltair-full"])  # of these two it is known what they do with one query at a time
def policy(request):
    return request.param


@pytest.fixture
def scheduler(policy):
    """One query at a time: it takes both cores for 48 ns."""
    return Scheduler(make_machine(2), [make_tenant(50)], {"m": [simple_profile(*LAYERS)]}, policy, workers=2)


def start(query, first=0):
    return StartBlock(LayerBlock(query, first, 3, (0,) * (3 - first), 2, 16 * (3 - first)), (0, 1))


def test_a_life(scheduler):
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1)]
    assert scheduler.handle(BlockFinished(48, 1, 3, 48)) == [FinishQuery(1)]
    stats = scheduler.stats()
    assert (stats.in_flight, stats.running, stats.cores_in_use, stats.blocks_started) == (0, 0, 0, 1)


def test_a_query_that_runs_already_has_what_it_runs_with_and_others_wait_for_it(scheduler):
    block = LayerBlock(1, 0, 3, (0, 0, 0), 2, 48)
    assert scheduler.handle(QueryRuns(5, make_query(1), block, level=1.0)) == [StartBlock(block, (0, 1))]
    assert scheduler.handle(QueryArrived(6, make_query(2))) == []
    assert scheduler.handle(BlockFinished(48, 1, 3, 43)) == [FinishQuery(1), start(2)]


def test_no_query_runs_already_beside_others(scheduler):
    scheduler.handle(QueryArrived(0, make_query(1)))
    with pytest.raises(InvariantError, match="query 2 cannot run already: others are in flight"):
        scheduler.handle(QueryRuns(5, make_query(2), LayerBlock(2, 0, 3, (0, 0, 0), 2, 48), level=1.0))
    scheduler.handle(BlockFinished(48, 1, 3, 48))
    with pytest.raises(InvariantError, match="query 2 cannot begin with"):
        scheduler.handle(QueryRuns(50, make_query(2), LayerBlock(2, 1, 3, (0, 0), 2, 32), level=1.0))


def test_stopped_early_it_goes_on_from_there(scheduler):
    scheduler.handle(QueryArrived(0, make_query(1)))
    stop_block(scheduler, 1)
    assert scheduler.handle(BlockFinished(16, 1, 1, 16)) == [start(1, first=1)]
    stop_block(scheduler, 1)
    assert scheduler.handle(BlockFinished(16, 1, 1, 0)) == [start(1, first=1)]  # before its first layer
    assert scheduler.handle(BlockFinished(48, 1, 3, 32)) == [FinishQuery(1)]


def test_a_failed_query_ends_without_a_decision(scheduler):
    scheduler.handle(QueryArrived(0, make_query(1)))
    scheduler.handle(QueryArrived(0, make_query(2)))
    assert scheduler.handle(BlockFailed(2, 1, "worker died")) == [start(2)]


def test_cancelling_a_waiting_query_is_silent(scheduler):
    scheduler.handle(QueryArrived(0, make_query(1)))
    scheduler.handle(QueryArrived(0, make_query(2)))
    assert scheduler.stats().waiting == {"a": 1}
    assert scheduler.handle(QueryCancelled(1, 2)) == []
    assert scheduler.stats().waiting == {"a": 0}
    assert scheduler.handle(BlockFinished(48, 1, 3, 48)) == [FinishQuery(1)]


@pytest.mark.parametrize(
    "end", [BlockFinished(9, 1, 1, 8), BlockFinished(9, 1, 3, 8), BlockFailed(9, 1, "died")], ids=str
)
def test_cancelling_a_running_query_stops_it_at_its_next_layer(scheduler, end):
    scheduler.handle(QueryArrived(0, make_query(1)))
    assert scheduler.handle(QueryCancelled(1, 1)) == [CancelQuery(1)]
    assert scheduler.handle(QueryCancelled(2, 1)) == []  # once is enough
    assert scheduler.handle(end) == []
    assert scheduler.stats().in_flight == 0
    with pytest.raises(InvariantError, match="query 1 is not in flight"):
        scheduler.handle(QueryCancelled(10, 1))


@pytest.fixture
def between_blocks():
    """Query 2 has run a layer, and has no core now; the older query 1 lost time and took them all."""
    policy = VeltairFull(against_slack=True, order=ServingOrder("oldest", "any-core"))
    scheduler = Scheduler(make_machine(2), [make_tenant(90)], {"m": [simple_profile(*LAYERS)]}, policy, workers=2)
    scheduler.handle(QueryArrived(0, make_query(1)))
    scheduler.handle(QueryArrived(0, make_query(2)))
    stop_block(scheduler, 1)
    late = LayerBlock(1, 1, 3, (0, 0), 2, 32)
    assert scheduler.handle(BlockFinished(50, 1, 1, 50)) == [StartBlock(late, (0,), conflict=True)]
    stop_block(scheduler, 2)
    assert scheduler.handle(BlockFinished(51, 2, 1, 51)) == [GrowBlock(1, (0, 1))]
    assert scheduler.stats().in_flight == 2
    return scheduler


def test_cancelling_between_two_blocks_is_silent_and_frees_the_worker(between_blocks):
    assert between_blocks.handle(QueryCancelled(31, 2)) == []
    assert between_blocks.stats().in_flight == 1


def test_a_worker_may_die_between_two_blocks(between_blocks):
    assert between_blocks.handle(BlockFailed(31, 2, "died")) == []
    assert between_blocks.stats().in_flight == 1


def test_the_profile_is_the_smallest_that_holds_the_batch():
    profiles = [simple_profile((10,), batch=1), simple_profile((40,), batch=4), simple_profile((80,), batch=8)]
    scheduler = Scheduler(make_machine(1, 1), [make_tenant(500)], {"m": profiles}, "fcfs", workers=9)
    for batch, predicted_ns in ((1, 10), (2, 20), (4, 40), (5, 50), (6, 70), (7, 70), (8, 80)):
        (decision,) = scheduler.handle(QueryArrived(0, make_query(batch, batch=batch)))
        assert decision.block.predicted_ns == predicted_ns
        scheduler.handle(BlockFinished(1, batch, 1, 1))
    assert scheduler.handle(QueryArrived(0, make_query(9, batch=9))) == [RejectQuery(9, RefusalReason.BATCH)]
    assert scheduler.stats().in_flight == 0


def test_a_profile_of_fewer_cores_than_the_machine_is_used_up_to_them(policy):
    scheduler = Scheduler(make_machine(8), [make_tenant(1)], {"m": [simple_profile((30, 20))]}, policy, workers=2)
    (decision,) = scheduler.handle(QueryArrived(0, make_query(1)))
    assert decision.block.cores == 2 and decision.core_set == (0, 1)


def test_time_does_not_run_backwards(scheduler):
    scheduler.handle(QueryArrived(100, make_query(1, 100)))
    assert scheduler.handle(BlockFinished(50, 1, 3, 48)) == [FinishQuery(1)]
    scheduler.handle(QueryArrived(60, make_query(2, 60)))
    # as at 100
    assert scheduler.state.in_flight[2].run.ends_ns == 148


RUNNING, WAITING, UNKNOWN = 1, 2, 7


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (BlockFinished(9, UNKNOWN, 3, 9), "query 7 is not in flight"),
        (BlockFinished(9, WAITING, 3, 9), "query 2 is not in flight"),
        (BlockFailed(9, UNKNOWN, ""), "query 7 is not in flight"),
        (BlockFailed(9, WAITING, ""), "query 2 is not in flight"),
        (QueryCancelled(9, UNKNOWN), "query 7 is not in flight"),
        (BlockGrown(9, WAITING, 1, (0, 1)), "query 2 is not in flight"),
        (BlockGrown(9, RUNNING, 1, (0, 1, 2)), "may use"),
        (BlockGrown(9, RUNNING, 1, (0,)), "ran on 2 cores"),
        (BlockGrown(9, RUNNING, 4, (0, 1)), "its cores last changed at layer 0"),
        (BlockFinished(9, RUNNING, 4, 9), "cannot have finished so"),
        (BlockFinished(9, RUNNING, -1, 9), "cannot have finished so"),
        (BlockFinished(9, RUNNING, 3, -1), "cannot have finished so"),
        (BlockFinished(9, RUNNING, 1, 9), "which nobody asked for"),
        (QueryArrived(9, make_query(RUNNING)), "arrived twice"),
        (QueryArrived(9, make_query(WAITING)), "arrived twice"),
        (QueryArrived(9, make_query(UNKNOWN, tenant="nobody")), "unknown tenant, 'nobody'"),
        (WorkersChanged(9, -1), "-1 workers"),
    ],
)
def test_what_cannot_be_names_the_last_events_and_changes_nothing(scheduler, event, says):
    scheduler.handle(QueryArrived(0, make_query(RUNNING)))
    scheduler.handle(QueryArrived(1, make_query(WAITING, 1)))
    stats, known = scheduler.stats(), snapshot(scheduler.state)
    clock_and_log = scheduler._now_ns, list(scheduler._last_events)
    with pytest.raises(InvariantError, match=says) as caught:
        scheduler.handle(event)
    assert repr(event) in str(caught.value) and "QueryArrived(time_ns=1" in str(caught.value)
    scheduler.check_invariants()
    assert (scheduler.stats(), snapshot(scheduler.state)) == (stats, known)
    assert (scheduler._now_ns, list(scheduler._last_events)) == clock_and_log == (1, clock_and_log[1])
    assert scheduler.handle(BlockFinished(48, RUNNING, 3, 48)) == [FinishQuery(RUNNING), start(WAITING)]


def test_a_query_arrives_once(scheduler):
    scheduler.handle(QueryArrived(0, make_query(1)))
    scheduler.handle(QueryArrived(0, make_query(2)))
    for id in (1, 2):
        with pytest.raises(InvariantError, match=f"query {id} arrived twice"):
            scheduler.handle(QueryArrived(1, make_query(id)))
    with pytest.raises(InvariantError, match="unknown tenant, 'nobody'"):
        scheduler.handle(QueryArrived(1, make_query(3, tenant="nobody")))


def test_only_the_last_events_are_remembered(scheduler):
    for i in range(40):
        scheduler.handle(WorkersChanged(i, 2))
    with pytest.raises(InvariantError) as caught:
        scheduler.handle(BlockFinished(99, 1, 3, 9))
    assert str(caught.value).count("WorkersChanged") == 15


@pytest.mark.parametrize("damage", ["held twice", "lost core", "average", "worker", "layer", "queue"])
def test_the_invariants_notice(scheduler, damage):
    scheduler.handle(QueryArrived(0, make_query(1)))
    scheduler.handle(QueryArrived(0, make_query(2)))
    scheduler.check_invariants()
    state = scheduler.state
    match damage:
        case "held twice":
            state.pool.give_back((0,))
        case "lost core":
            state.in_flight[1].run.core_set = (0,)
        case "average":
            state.total_avg += 1
        case "worker":
            state.workers = 0
        case "layer":
            state.in_flight[1].next_layer = 1
        case "queue":
            state.waiting[1] = state.in_flight[1]
    with pytest.raises(InvariantError, match="the last events"):
        scheduler.check_invariants()


def test_a_share_of_the_target_may_be_left_unplanned():
    scheduler = Scheduler(
        make_machine(2), [make_tenant(100)], {"m": [simple_profile(*LAYERS)]}, "fcfs", 2, planned_share=0.8
    )
    (decision,) = scheduler.handle(QueryArrived(0, make_query(1)))
    assert decision.block.cores == 2  # 90 ns on one core are within 100, not within 80
    assert scheduler.state.in_flight[1].due_ns == 80
    for share in (0.0, 1.5):
        with pytest.raises(ConfigError, match="planned share"):
            Scheduler(
                make_machine(2), [make_tenant(100)], {"m": [simple_profile(*LAYERS)]}, "fcfs", 2, planned_share=share
            )


def test_the_level_comes_from_the_given_source():
    def build(proxy):
        profile = simple_profile(*LAYERS, nbytes=3200)
        return Scheduler(make_machine(2), [make_tenant(50)], {"m": [profile]}, "veltair-full", 2, proxy=proxy)

    counters = build(CounterModel(1.5, 0.0, 0.0))
    counters.handle(CountersSampled(0, CounterSample(0, 10, 5, 5, "test")))
    assert (counters.level, counters.level_source) == (1.5, "counters")

    demand = build(PredictedDemand(memory_bytes_per_ns=100.0))
    demand.handle(QueryArrived(0, make_query(1)))
    demand.handle(WorkersChanged(1, 2))  # seen with the next event: 9600 bytes in 48 ns
    assert (demand.level, demand.level_source) == (2.0, "demand")


def test_observed_slowdown_is_that_of_blocks_that_ran_to_their_ends(scheduler):
    [start] = scheduler.handle(QueryArrived(0, make_query(1)))
    stop_block(scheduler, 1)
    [again] = scheduler.handle(BlockFinished(32, 1, 1, 32))  # one layer, 16 ns alone
    assert scheduler.level == 1.0
    alone_ns = again.block.predicted_ns
    scheduler.handle(BlockFinished(32 + 2 * alone_ns, 1, start.block.stop, 2 * alone_ns))
    assert scheduler.level == pytest.approx(1.0 + 0.2 * 1.0)
    assert scheduler.stats().level_source == "observed"


def test_a_wrong_set_up_is_refused():
    good = {
        "machine": make_machine(2),
        "tenants": [make_tenant(50)],
        "profiles": {"m": [simple_profile(*LAYERS)]},
        "policy": "fcfs",
        "workers": 1,
    }
    Scheduler(**good)
    for wrong, says in [
        ({"policy": "fifo"}, f"unknown policy 'fifo': expected one of {', '.join(sorted(POLICIES))}"),
        ({"workers": -1}, "0 or more, got -1"),
        ({"machine": Machine(())}, "at least one core"),
        ({"machine": Machine(((0, 1), (1, 2)))}, "none twice"),
        ({"tenants": [make_tenant(50), make_tenant(60)]}, "'a' is given twice"),
        ({"tenants": [make_tenant(50, model="x")]}, "no profile of its model 'x'"),
        ({"tenants": [make_tenant(0)]}, "above 0 ns"),
        ({"profiles": {"m": []}}, "ascending batch sizes"),
        ({"profiles": {"m": [simple_profile((1,), batch=2), simple_profile((1,), batch=1)]}}, r"ascending.*\[2, 1\]"),
    ]:
        with pytest.raises(ConfigError, match=says):
            Scheduler(**good | wrong)

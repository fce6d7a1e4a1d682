"""Queries that run as one batch: what becomes of them, and when `veltair` and `clockwork` make one."""

import pytest
from scheduler_builders import make_machine, make_tenant, simple_profile, stop_block

from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    CancelQuery,
    FinishQuery,
    QueryArrived,
    QueryCancelled,
    RejectQuery,
    StartBlock,
    StopBlock,
)
from veltair.scheduler.scheduler import Scheduler
from veltair.simulation.interference_model import Alone, solo_times
from veltair.simulation.virtual_machine import VirtualMachine
from veltair.types import Query


@pytest.fixture
def build():
    """One core; two layers that take 50 ns each at batch 1, 100 at batch 4, 300 at batch 16, and between, between."""

    def make(*, qos_ns=2000, batching=True, policy="veltair", times=((1, 50), (4, 100), (16, 300))):
        profiles = [simple_profile((ns,), (ns,), batch=batch) for batch, ns in times]
        other = [simple_profile((10,), model="o")]
        tenants = [make_tenant(qos_ns, batching=batching), make_tenant(100, name="b", model="o")]
        return Scheduler(make_machine(1), tenants, {"m": profiles, "o": other}, policy, 8)

    return make


@pytest.fixture
def arrives():
    def send(scheduler, id, at=0, *, batch=1, deadline_ns=None):
        return scheduler.handle(QueryArrived(at, Query(id, "a", at, deadline_ns, batch)))

    return send


@pytest.fixture
def batch(build, arrives):
    """Queries 2, 3 and 4 run in the name of 2, since time 100."""
    scheduler = build()
    for id in (1, 2, 3, 4):
        arrives(scheduler, id)
    finished, start = scheduler.handle(BlockFinished(100, 1, 2, 100))
    assert finished == FinishQuery(1)
    assert (start.block.query, start.members) == (2, (3, 4))
    return scheduler


def members(decisions):
    (start,) = [decision for decision in decisions if isinstance(decision, StartBlock)]
    return start.members


def test_what_waits_runs_as_one_batch_by_the_costs_of_its_size_and_ends_in_order(batch):
    run = batch.state.in_flight[2].run
    assert (run.costs.profile.batch, run.predicted_ns) == (3, 166)
    assert not batch.state.waiting and batch.state.total_avg == 1
    assert batch.handle(BlockFinished(300, 2, 2, 200)) == [FinishQuery(2), FinishQuery(3), FinishQuery(4)]
    batch.check_invariants()
    assert batch.stats().in_flight == 0 and not batch.state.leader_of


def test_later_blocks_name_no_members(batch):
    stop_block(batch, 2)
    (again,) = batch.handle(BlockFinished(200, 2, 1, 100))
    assert (again.block.query, again.block.start, again.members) == (2, 1, ())


@pytest.mark.parametrize("gone", [2, 3, 4])
def test_one_that_is_cancelled_leaves_the_others_alone(batch, gone):
    assert batch.handle(QueryCancelled(150, gone)) == []
    batch.check_invariants()
    left = [FinishQuery(id) for id in (2, 3, 4) if id != gone]
    assert batch.handle(BlockFinished(300, 2, 2, 200)) == left


@pytest.mark.parametrize("order", [(2, 3, 4), (4, 3, 2), (3, 2, 4)])
def test_it_stops_when_nobody_waits_for_it_any_more(batch, order):
    for id in order[:2]:
        assert batch.handle(QueryCancelled(150, id)) == []
    assert batch.handle(QueryCancelled(150, order[2])) == [CancelQuery(2)]
    assert batch.handle(BlockFinished(200, 2, 1, 100)) == []
    assert not batch.state.in_flight and not batch.state.leader_of


def test_a_lost_worker_takes_all_of_it_along(batch):
    assert batch.handle(BlockFailed(150, 2, "died")) == []
    batch.check_invariants()
    assert not batch.state.in_flight and not batch.state.leader_of


def test_a_batch_may_be_stopped_for_a_hurried_query_and_goes_on(batch):
    assert batch.handle(QueryArrived(110, Query(9, "b", 110))) == [StopBlock(2)]
    (hurried,) = batch.handle(BlockFinished(200, 2, 1, 100))
    assert hurried.block.query == 9
    finished, again = batch.handle(BlockFinished(210, 9, 1, 10))
    assert (finished, again.block.query, again.block.start) == (FinishQuery(9), 2, 1)
    assert batch.handle(BlockFinished(310, 2, 2, 100)) == [FinishQuery(2), FinishQuery(3), FinishQuery(4)]


def test_a_batch_past_every_deadline_of_its_own_is_given_up_as_a_whole(build, arrives):
    scheduler = build()
    for id, deadline_ns in ((1, 900), (2, 1000), (3, 1100), (4, 1100)):
        arrives(scheduler, id, deadline_ns=deadline_ns)
    assert members(scheduler.handle(BlockFinished(100, 1, 2, 100))) == (3, 4)
    stop_block(scheduler, 2)
    given_up = scheduler.handle(BlockFinished(1050, 2, 1, 950))
    assert [(type(d), d.query) for d in given_up] == [(RejectQuery, 2), (RejectQuery, 3), (RejectQuery, 4)]


@pytest.mark.parametrize("switch", [{"batching": False}, {"policy": "fcfs"}, {"times": ((1, 50),)}])
def test_where_it_is_off_queries_run_one_by_one(build, arrives, switch):
    scheduler = build(**switch)
    for id in (1, 2, 3):
        arrives(scheduler, id)
    assert members(scheduler.handle(BlockFinished(100, 1, 2, 100))) == ()


def test_there_is_no_batch_that_costs_as_much_as_its_queries(build, arrives):
    for batch_ns, of_all in ((200, ()), (198, (3, 4, 5))):
        scheduler = build(times=((1, 50), (4, batch_ns)))
        for id in (1, 2, 3, 4, 5):
            arrives(scheduler, id)
        assert members(scheduler.handle(BlockFinished(100, 1, 2, 100))) == of_all


def test_a_batch_is_no_larger_than_its_first_deadline_and_the_largest_profile_allow(build, arrives):
    scheduler = build(qos_ns=10_000)
    for id in range(1, 21):
        arrives(scheduler, id)
    assert members(scheduler.handle(BlockFinished(100, 1, 2, 100))) == tuple(range(3, 18))
    scheduler = build(qos_ns=10_000)
    for id in range(1, 21):  # 16 take 600 of the 700 that are left, of which 85 % are planned; 12 take 466
        arrives(scheduler, id, deadline_ns=800 if id == 4 else None)
    start = scheduler.handle(BlockFinished(100, 1, 2, 100))[1]
    assert start.block.query == 4 and len(start.members) == 11


def test_queries_of_several_samples_count_as_many(build, arrives):
    scheduler = build(qos_ns=10_000)
    for id, samples in ((1, 1), (2, 2), (3, 1), (4, 2)):
        arrives(scheduler, id, batch=samples)
    assert members(scheduler.handle(BlockFinished(100, 1, 2, 100))) == (3, 4)
    assert scheduler.state.in_flight[2].run.costs.profile.batch == 5


def test_clockwork_takes_the_largest_batch_that_is_in_time(build, arrives):
    for qos_ns, most in ((565, 9), (566, 12)):  # 12 take 466
        scheduler = build(policy="clockwork", qos_ns=qos_ns)
        for id in range(1, 21):
            arrives(scheduler, id)
        assert members(scheduler.handle(BlockFinished(100, 1, 2, 100))) == tuple(range(3, most + 2))


@pytest.mark.parametrize("batching", [True, False])
def test_as_many_are_taken_as_batches_will_serve_in_time(build, arrives, batching):
    scheduler = build(qos_ns=600, batching=batching)
    refused = [id for id in range(20) if any(isinstance(d, RejectQuery) for d in arrives(scheduler, id))]
    virtual = VirtualMachine(scheduler, Alone(solo_times(scheduler)))
    virtual.add_event(BlockFinished(100, 0, 2, 100))
    assert [event for event, _ in virtual.run() if event.time_ns > 600] == []
    assert refused == list(range(9 if batching else 4, 20))

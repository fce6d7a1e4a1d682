"""What a policy may do, what it is told, and how the scheduler carries out and checks its steps."""

from __future__ import annotations

import pytest
from scheduler_builders import make_machine, make_query, make_tenant, simple_profile, stop_block

from veltair.errors import InvariantError, RefusalReason
from veltair.scheduler.events import (
    BlockFinished,
    QueryArrived,
    QueryCancelled,
    RejectQuery,
    StartBlock,
    StopBlock,
    WorkersChanged,
)
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.query_states import QueryState
from veltair.scheduler.scheduler import Scheduler
from veltair.scheduler.steps import Reject, Start, Stop
from veltair.types import LayerBlock

LAYERS = ((30, 16), (30, 16), (30, 16))


class Scripted(Policy):
    """Does what it is told, and keeps what it is told of."""

    def __init__(self):
        self.steps, self.heard = [], []

    def next_step(self, state, now_ns):
        return self.steps.pop(0)(state) if self.steps else None

    def query_arrived(self, active, now_ns):
        self.heard.append(("arrived", active.query.id, now_ns))

    def block_ended(self, active, run, stop, elapsed_ns):
        self.heard.append(("block", active.query.id, stop, elapsed_ns))

    def query_ended(self, active, now_ns):
        self.heard.append(("ended", active.query.id, now_ns))


@pytest.fixture
def scripted():
    policy = Scripted()
    scheduler = Scheduler(make_machine(2), [make_tenant(90)], {"m": [simple_profile(*LAYERS)]}, policy, 2)
    policy.steps.append(lambda state: Start(state.waiting[1], state.waiting[1].next_block(0, 3, 1), 0))
    assert len(scheduler.handle(QueryArrived(0, make_query(1)))) == 1
    return scheduler, policy


def test_a_stopped_block_ends_at_its_next_layer_and_its_query_goes_on(scripted):
    scheduler, policy = scripted
    policy.steps.append(lambda state: Stop(state.in_flight[1]))
    assert scheduler.handle(WorkersChanged(10, 2)) == [StopBlock(1)]
    assert scheduler.state.in_flight[1].state is QueryState.STOPPING
    policy.steps.append(lambda state: Start(state.in_flight[1], state.in_flight[1].next_block(0, 3, 2), 0))
    (again,) = scheduler.handle(BlockFinished(30, 1, 1, 30))
    assert again == StartBlock(LayerBlock(1, 1, 3, (0, 0), 2, 32), (0, 1))
    assert scheduler.state.in_flight[1].ready_ns == 30


def test_what_stops_neither_grows_nor_is_stopped_twice(scripted):
    scheduler, policy = scripted
    active = scheduler.state.in_flight[1]
    policy.steps += [lambda state: Stop(active), lambda state: Stop(active)]
    with pytest.raises(InvariantError, match="stopping already"):
        scheduler.handle(WorkersChanged(10, 2))
    active.run.block, active.run.growable = LayerBlock(1, 0, 3, (0, 0, 0), 2, 48), True
    assert active.missing_cores(10) == 0
    active.state = QueryState.RUNNING
    assert active.missing_cores(10) == 1


def test_a_policy_may_give_up_what_does_not_run(scripted):
    scheduler, policy = scripted
    policy.steps.append(lambda state: Reject(state.waiting[2], RefusalReason.OVERLOAD, for_ns=7))
    assert scheduler.handle(QueryArrived(5, make_query(2, 5))) == [RejectQuery(2, RefusalReason.OVERLOAD, for_ns=7)]
    stop_block(scheduler, 1)
    policy.steps.append(lambda state: Reject(state.in_flight[1], RefusalReason.NO_TIME))
    assert scheduler.handle(BlockFinished(30, 1, 1, 30)) == [RejectQuery(1, RefusalReason.NO_TIME)]
    assert scheduler.stats().in_flight == 0
    scheduler.check_invariants()


def test_a_running_query_is_not_given_up(scripted):
    scheduler, policy = scripted
    policy.steps.append(lambda state: Reject(state.in_flight[1], RefusalReason.NO_TIME))
    with pytest.raises(InvariantError, match="runs a block"):
        scheduler.handle(WorkersChanged(10, 2))


def test_a_policy_is_told_what_happens(scripted):
    scheduler, policy = scripted
    scheduler.handle(QueryArrived(5, make_query(2, 5)))
    stop_block(scheduler, 1)
    scheduler.handle(BlockFinished(30, 1, 1, 28))
    scheduler.handle(QueryCancelled(31, 1))
    scheduler.handle(QueryCancelled(32, 2))
    assert policy.heard == [
        ("arrived", 1, 0),
        ("arrived", 2, 5),
        ("block", 1, 1, 28),
        ("ended", 1, 31),
        ("ended", 2, 32),
    ]


def test_the_layer_in_execution_is_estimated(scripted):
    scheduler, _ = scripted
    run = scheduler.state.in_flight[1].run  # three layers of 30 ns on one core
    assert [run.layer_at(now) for now in (0, 29, 30, 59, 60, 89, 90, 500)] == [0, 0, 1, 1, 2, 2, 2, 2]


class Greedy(Policy):
    """Starts the same block again and again."""

    def __init__(self, block):
        self.block = block

    def next_step(self, state, now_ns):
        active = next(iter([*state.in_flight.values(), *state.waiting.values()]), None)
        return None if active is None else Start(active, self.block, 0)


@pytest.mark.parametrize(
    ("block", "workers", "says"),
    [
        (LayerBlock(1, 0, 3, (0, 0, 0), 2, 48), 2, "with no core free"),
        (LayerBlock(1, 0, 3, (0, 0, 0), 1, 90), 2, "stands at layer 3"),
        (LayerBlock(1, 1, 3, (0, 0), 1, 60), 2, "stands at layer 0"),
        (LayerBlock(1, 0, 3, (0, 0, 0), 1, 90), 0, "with no worker free"),
    ],
)
def test_a_policy_cannot_break_the_rules(block, workers, says):
    scheduler = Scheduler(make_machine(2), [make_tenant(50)], {"m": [simple_profile(*LAYERS)]}, Greedy(block), workers)
    with pytest.raises(InvariantError, match=says):
        scheduler.handle(QueryArrived(0, make_query(1)))

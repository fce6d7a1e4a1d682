"""Clockwork, one query a batch, event by event."""

import pytest
from scheduler_builders import make_machine, make_query, simple_profile

from veltair.errors import RefusalReason
from veltair.scheduler.events import BlockFinished, FinishQuery, QueryArrived, RejectQuery, StartBlock
from veltair.scheduler.scheduler import Scheduler
from veltair.types import LayerBlock, QoSTarget, Tenant


@pytest.fixture
def clockwork():
    profiles = {"m": [simple_profile((100, 60), (100, 60))], "s": [simple_profile((30, 20), model="s")]}
    tenants = [Tenant("a", "m", QoSTarget(500)), Tenant("b", "s", QoSTarget(300))]
    return Scheduler(make_machine(2), tenants, profiles, "clockwork", 4)


def start(query, layers, cores, predicted_ns, core_set):
    return StartBlock(LayerBlock(query, 0, layers, (0,) * layers, cores, predicted_ns), core_set)


def test_a_query_gets_the_least_cores_that_are_in_time_from_now(clockwork):
    assert clockwork.handle(QueryArrived(0, make_query(1))) == [start(1, 2, 1, 200, (0,))]
    assert clockwork.handle(QueryArrived(350, make_query(2, 0))) == []  # 150 ns are left: it wants both cores
    assert clockwork.handle(BlockFinished(360, 1, 2, 200)) == [FinishQuery(1), start(2, 2, 2, 120, (0, 1))]


def test_the_head_with_the_least_latest_start_goes_first_and_nobody_passes_it(clockwork):
    clockwork.handle(QueryArrived(350, make_query(1, 0)))  # on both cores
    assert clockwork.handle(QueryArrived(351, make_query(2, 351))) == []  # latest start 851 - 120 = 731
    assert clockwork.handle(QueryArrived(352, make_query(3, 352, "b"))) == []  # 652 - 20 = 632
    assert clockwork.handle(BlockFinished(470, 1, 2, 120)) == [
        FinishQuery(1),
        start(3, 1, 1, 30, (0,)),
        start(2, 2, 1, 200, (1,)),
    ]


def test_heads_that_cannot_make_it_are_dropped(clockwork):
    clockwork.handle(QueryArrived(350, make_query(1, 0)))
    clockwork.handle(QueryArrived(351, make_query(2, 0)))
    # it should have started by 500 - 120 = 380
    assert clockwork.handle(QueryArrived(380, make_query(3, 380))) == []
    dropped, *_ = clockwork.handle(BlockFinished(2381, 1, 2, 2000))[1:]
    assert dropped == RejectQuery(2, RefusalReason.OVERDUE)


def test_what_starts_at_its_latest_start_is_in_time(clockwork):
    assert clockwork.handle(QueryArrived(380, make_query(1, 0))) == [start(1, 2, 2, 120, (0, 1))]

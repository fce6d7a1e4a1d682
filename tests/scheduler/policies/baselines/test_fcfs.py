"""Model-wise FCFS, event by event."""

import pytest
from scheduler_builders import make_machine, make_profile, make_query, make_tenant, simple_profile, stop_block

from veltair.scheduler.events import BlockFinished, FinishQuery, QueryArrived, StartBlock, WorkersChanged
from veltair.scheduler.scheduler import Scheduler
from veltair.types import LayerBlock

LAYERS = ((100, 60, 45, 40), (100, 60, 45, 40))  # together 200, 120, 90, 80 ns


@pytest.fixture
def fcfs():
    def build(qos_ns=100, workers=4, sizes=(2, 2), layers=LAYERS):
        return Scheduler(make_machine(*sizes), [make_tenant(qos_ns)], {"m": [simple_profile(*layers)]}, "fcfs", workers)

    return build


def start(query, cores, predicted_ns, core_set, first=0):
    block = LayerBlock(query, first, 2, (0,) * (2 - first), cores, predicted_ns)
    return StartBlock(block, core_set)


@pytest.mark.parametrize(
    ("qos_ns", "cores", "predicted_ns", "core_set"),
    [
        (200, 1, 200, (0,)),
        (199, 2, 120, (0, 1)),
        (100, 3, 90, (0, 1, 2)),
        (80, 4, 80, (0, 1, 2, 3)),
        (10, 4, 80, (0, 1, 2, 3)),  # never in time: all
    ],
)
def test_least_cores_that_hold_the_qos(fcfs, qos_ns, cores, predicted_ns, core_set):
    assert fcfs(qos_ns).handle(QueryArrived(0, make_query(1))) == [start(1, cores, predicted_ns, core_set)]


def test_the_head_waits_for_all_its_cores_and_nobody_passes_it(fcfs):
    profiles = {"m": [simple_profile(*LAYERS)], "small": [simple_profile((10,) * 4, (10,) * 4, model="small")]}
    tenants = [make_tenant(100), make_tenant(100, "b", "small")]
    scheduler = Scheduler(make_machine(2, 2), tenants, profiles, "fcfs", workers=4)
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, 3, 90, (0, 1, 2))]
    assert scheduler.handle(QueryArrived(1, make_query(2, 1))) == []  # one core is free, three are needed
    assert scheduler.handle(QueryArrived(2, make_query(3, 2, tenant="b"))) == []  # would fit, but is not the head
    assert scheduler.handle(BlockFinished(90, 1, 2, 90)) == [
        FinishQuery(1),
        start(2, 3, 90, (0, 1, 2)),
        start(3, 1, 20, (3,)),
    ]
    assert scheduler.handle(BlockFinished(110, 3, 2, 20)) == [FinishQuery(3)]
    assert scheduler.handle(BlockFinished(180, 2, 2, 90)) == [FinishQuery(2)]


def test_no_more_in_flight_than_workers(fcfs):
    scheduler = fcfs(qos_ns=200, workers=2)
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, 1, 200, (0,))]
    assert scheduler.handle(QueryArrived(0, make_query(2))) == [start(2, 1, 200, (1,))]
    assert scheduler.handle(QueryArrived(0, make_query(3))) == []
    assert scheduler.handle(WorkersChanged(5, 3)) == [start(3, 1, 200, (2,))]
    assert scheduler.handle(WorkersChanged(6, 1)) == []
    assert scheduler.handle(QueryArrived(7, make_query(4))) == []
    assert scheduler.handle(BlockFinished(200, 1, 2, 200)) == [FinishQuery(1)]
    assert scheduler.handle(BlockFinished(200, 2, 2, 200)) == [FinishQuery(2)]
    assert scheduler.handle(BlockFinished(205, 3, 2, 200)) == [FinishQuery(3), start(4, 1, 200, (0,))]


def test_a_block_stopped_early_goes_on_with_the_same_cores_before_all_others(fcfs):
    scheduler = fcfs()
    scheduler.handle(QueryArrived(0, make_query(1)))
    scheduler.handle(QueryArrived(0, make_query(2)))
    stop_block(scheduler, 1)
    assert scheduler.handle(BlockFinished(45, 1, 1, 45)) == [start(1, 3, 45, (0, 1, 2), first=1)]


def test_interference_changes_nothing():
    # the second version is the better one from level 2.0 on, which fcfs does not look at
    layers = [[[[50], [200]], [[60], [70]]]] * 2
    scheduler = Scheduler(
        make_machine(1), [make_tenant(500)], {"m": [make_profile(layers, levels=(1.0, 2.0))]}, "fcfs", workers=1
    )
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, 1, 100, (0,))]
    for i in range(1, 20):
        finish, again = (BlockFinished(i * 1000, i, 2, 800), QueryArrived(i * 1000, make_query(i + 1)))
        scheduler.handle(finish)
        assert scheduler.handle(again) == [start(i + 1, 1, 100, (0,))]
    assert scheduler.level > 5

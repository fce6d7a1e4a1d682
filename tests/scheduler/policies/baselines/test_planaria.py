"""Planaria's cut of the machine, and how it takes hold."""

import pytest
from scheduler_builders import make_machine, make_query, make_tenant, simple_profile

from veltair.scheduler.events import BlockFinished, FinishQuery, QueryArrived, StartBlock, StopBlock, WorkersChanged
from veltair.scheduler.policies.baselines.planaria import Planaria, PlanariaTask, share_cores
from veltair.scheduler.scheduler import Scheduler
from veltair.types import LayerBlock, QoSTarget, Tenant

EVEN = (80, 40, 28, 20, 16, 14, 12, 10)  # ns on 1 … 8 cores


@pytest.fixture
def state():
    """Builds tasks out of (id, priority, slack, least), all of one model at its begin."""
    scheduler = Scheduler(
        make_machine(8), [Tenant("a", "m", QoSTarget(100))], {"m": [simple_profile(EVEN)]}, "planaria", 0
    )

    def tasks(*rows):
        made = []
        for id, priority, slack_ns, least in rows:
            scheduler.handle(QueryArrived(0, make_query(id)))
            active = scheduler.state.waiting[id]
            active.tenant = Tenant("a", "m", QoSTarget(100), priority)
            made.append(PlanariaTask(active, 0, slack_ns, least))
        return made

    return tasks


@pytest.mark.parametrize(
    ("cores", "rows", "expected"),
    [
        # all fit, with 40 ns to go each: the spare 4 by priority / remaining, 3/4 and 1/4
        (8, [(1, 3, 50, 2), (2, 1, 50, 2)], {1: 5, 2: 3}),
        # spare of 3 at 1/2 each: 2 and 1 by rounding, the first of equals first
        (7, [(1, 1, 50, 2), (2, 1, 50, 2)], {1: 4, 2: 3}),
        # 6 + 4 > 8: by priority / (slack x need): 1/(60 x 6) < 1/(50 x 4)
        (8, [(1, 1, 60, 6), (2, 1, 50, 4)], {1: 4, 2: 4}),
        # an infeasible one gets nothing beside a feasible one, and the rest stays unused
        (8, [(1, 1, 60, 3), (2, 9, 5, None)], {1: 3, 2: 0}),
        # all infeasible: in proportion to priority / remaining
        (8, [(1, 3, 1, None), (2, 1, -4, None)], {1: 6, 2: 2}),
        (8, [(1, 1, 0, None)], {1: 8}),
        # the profile knows 8 cores
        (12, [(1, 3, 1, None), (2, 1, 1, None)], {1: 8, 2: 4}),
    ],
)
def test_shares(state, cores, rows, expected):
    assert share_cores(state(*rows), cores) == expected


def start(query, first, cores, predicted_ns, core_set):
    return StartBlock(LayerBlock(query, first, 2, (0,) * (2 - first), cores, predicted_ns), core_set)


def test_an_arrival_stops_what_runs_and_the_machine_is_cut_anew():
    scheduler = Scheduler(make_machine(8), [make_tenant(200)], {"m": [simple_profile(EVEN, EVEN)]}, "planaria", 2)
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, 0, 8, 20, tuple(range(8)))]
    assert scheduler.handle(QueryArrived(2, make_query(2, 2))) == [StopBlock(1)]
    # half of the machine for each
    assert scheduler.handle(BlockFinished(10, 1, 1, 10)) == [
        start(1, 1, 4, 20, (0, 1, 2, 3)),
        start(2, 0, 4, 40, (4, 5, 6, 7)),
    ]
    # alone again, query 2 is stopped to go on with all of it
    assert scheduler.handle(BlockFinished(30, 1, 2, 20)) == [FinishQuery(1), StopBlock(2)]
    assert scheduler.handle(BlockFinished(50, 2, 1, 40)) == [start(2, 1, 8, 10, tuple(range(8)))]


@pytest.mark.parametrize(
    ("sheds_late", "expected"),
    [
        # query 2 takes 10 ns on all cores, twice its target: it gets nothing while query 1 can be in time
        (True, [start(1, 1, 1, 80, (0,))]),
        # or it is due as soon as it can end, which is before query 1
        (False, [start(2, 0, 8, 20, tuple(range(8)))]),
    ],
)
def test_a_late_query_is_shed_or_goes_on(sheds_late, expected):
    tenants = [make_tenant(200), make_tenant(5, "b")]
    profiles = {"m": [simple_profile(EVEN, EVEN)]}
    scheduler = Scheduler(make_machine(8), tenants, profiles, Planaria(sheds_late=sheds_late), 2)
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, 0, 8, 20, tuple(range(8)))]
    assert scheduler.handle(QueryArrived(1, make_query(2, 1, "b"))) == [StopBlock(1)]
    assert scheduler.handle(BlockFinished(10, 1, 1, 10)) == expected


def test_workers_count():
    scheduler = Scheduler(make_machine(8), [make_tenant(200)], {"m": [simple_profile(EVEN, EVEN)]}, "planaria", 1)
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, 0, 8, 20, tuple(range(8)))]
    assert scheduler.handle(QueryArrived(1, make_query(2, 1))) == []
    assert scheduler.handle(WorkersChanged(2, 2)) == [StopBlock(1)]

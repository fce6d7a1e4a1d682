"""Packrat's choice of instances and threads."""

import pytest
from scheduler_builders import make_machine, make_query, make_tenant, simple_profile

from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.events import BlockFinished, QueryArrived
from veltair.scheduler.policies.baselines.packrat import PERIOD_NS, Pack, assign_threads
from veltair.scheduler.scheduler import Scheduler

STIFF = (80, 60, 50, 45, 44, 43, 42, 41)  # ns on 1 … 8 cores
EVEN = (80, 40, 28, 20, 17, 15, 13, 11)


@pytest.fixture
def pack():
    def make(row, qos_ns, per_ns=0.0):
        return Pack(qos_ns, ProfileCosts(simple_profile(row), (1.0,), 8), per_ns=per_ns)

    return make


@pytest.mark.parametrize(
    ("packs", "cores", "expected"),
    [
        # no load known: one instance each on the fewest threads in time, the rest where it gains most a core
        ([(EVEN, 80, 0.0)], 8, [(8, 1)]),
        ([(STIFF, 80, 0.0), (EVEN, 80, 0.0)], 4, [(2, 1), (2, 1)]),
        # 0.03 queries a ns x 80 ns / 0.8: three instances of one thread keep up, and are as many as fit
        ([(STIFF, 80, 0.03)], 4, [(1, 4)]),
        # the QoS wants two threads: 0.03 x 40 / 0.8 = 1.5
        ([(EVEN, 40, 0.03)], 4, [(2, 2)]),
        # nobody holds the QoS: the fastest number of threads
        ([(EVEN, 5, 0.0)], 8, [(8, 1)]),
    ],
)
def test_threads_and_instances(pack, packs, cores, expected):
    made = [pack(*row) for row in packs]
    assign_threads(made, cores)
    assert [(pack.threads, pack.instances) for pack in made] == expected
    assert sum(pack.threads * pack.instances for pack in made) <= cores


def test_the_choice_follows_the_load():
    scheduler = Scheduler(
        make_machine(4), [make_tenant(10**9)], {"m": [simple_profile([t * 10**6 for t in EVEN[:4]])]}, "packrat", 8
    )
    (first,) = scheduler.handle(QueryArrived(0, make_query(1)))
    assert first.block.cores == 4  # nothing is known of the load
    scheduler.handle(BlockFinished(1, 1, 1, 1))
    for id in range(2, 80):  # 80 queries a second, of 80 ms on one core
        scheduler.handle(QueryArrived(id, make_query(id, id)))
        scheduler.handle(BlockFinished(id, id, 1, 1))
    scheduler.handle(QueryArrived(PERIOD_NS, make_query(90, PERIOD_NS)))
    started = [*scheduler.handle(BlockFinished(PERIOD_NS, 90, 1, 1))]
    for id in (91, 92, 93, 94):
        started += scheduler.handle(QueryArrived(PERIOD_NS, make_query(id, PERIOD_NS)))
    assert [decision.block.cores for decision in started[1:]] == [1, 1, 1, 1]

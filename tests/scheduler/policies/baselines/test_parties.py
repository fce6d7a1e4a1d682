"""PARTIES' partitions and polls."""

import pytest
from scheduler_builders import make_machine, simple_profile

from veltair.scheduler.events import BlockFinished, FinishQuery, QueryArrived, StartBlock
from veltair.scheduler.policies.baselines.parties import POLL_NS, POLLS_OF_REST, Parties
from veltair.scheduler.scheduler import Scheduler
from veltair.types import LayerBlock, QoSTarget, Query, Tenant

MS = 1_000_000


class Served:
    """Two tenants, `a` and `b`, on eight cores; a query takes just as long as it is told to."""

    def __init__(self):
        layers = [(80 * MS, 40 * MS, 27 * MS, 20 * MS, 16 * MS, 14 * MS, 12 * MS, 10 * MS)]
        tenants = [Tenant(name, "m", QoSTarget(20 * MS)) for name in "ab"]
        self.policy = Parties()
        self.scheduler = Scheduler(make_machine(8), tenants, {"m": [simple_profile(*layers)]}, self.policy, 8)
        self.now = 0
        self.count = 0

    def query(self, tenant, latency_ms):
        self.count += 1
        started = self.scheduler.handle(QueryArrived(self.now, Query(self.count, tenant, self.now)))
        self.now += latency_ms * MS
        assert FinishQuery(self.count) in self.scheduler.handle(BlockFinished(self.now, self.count, 1, latency_ms * MS))
        return started

    def polls(self, count, **latency_ms):
        """So many polls, before each of which every tenant named gets a query."""
        for _ in range(count):
            begin = self.now
            for tenant, ms in latency_ms.items():
                self.query(tenant, ms)
            self.now = begin + POLL_NS

    @property
    def cores(self):
        return {name: partition.cores for name, partition in self.policy.partitions.items()}


@pytest.fixture
def served():
    return Served()


def test_equal_at_first_and_nobody_leaves_its_partition(served):
    assert served.query("a", 1) == [StartBlock(LayerBlock(1, 0, 1, (0,), 4, 20 * MS), (0, 1, 2, 3))]
    assert served.cores == {"a": 4, "b": 4}
    handle = served.scheduler.handle
    assert len(handle(QueryArrived(served.now, Query(11, "a", served.now)))) == 1
    assert handle(QueryArrived(served.now, Query(12, "a", served.now))) == []  # though four cores are free
    (other,) = handle(QueryArrived(served.now, Query(13, "b", served.now)))
    assert other.core_set == (4, 5, 6, 7)


def test_the_richest_tenant_gives_a_core_to_the_one_that_is_short(served):
    served.polls(11, a=30, b=17)  # slacks of -0.5 and 0.15; it takes until a's average is below 0.05
    assert served.cores["a"] > 4 and sum(served.cores.values()) == 8


def test_plenty_of_slack_is_taken_and_watched(served):
    served.polls(2, a=10, b=17)
    assert served.cores == {"a": 3, "b": 4} and served.policy.spare == 1
    served.polls(4, a=10, b=17)  # it is watched: nothing more
    assert served.cores == {"a": 3, "b": 4}
    served.polls(2, a=10, b=17)
    assert served.cores == {"a": 2, "b": 4}


def test_nothing_is_done_on_old_news(served):
    served.polls(2, a=10, b=17)
    for _ in range(40):  # polls with only b to be seen
        served.polls(1, b=17)
    assert served.cores == {"a": 3, "b": 4}


def test_a_downsize_that_hurts_is_undone_and_not_tried_again_for_long(served):
    served.polls(2, a=10, b=17)
    assert served.cores["a"] == 3
    served.polls(2, a=20, b=17)
    assert served.cores["a"] == 4 and served.policy.spare == 0
    served.polls(POLLS_OF_REST - 2, a=10, b=17)
    assert served.cores["a"] == 4
    served.polls(3, a=10, b=17)
    assert served.cores["a"] == 3


def test_more_tenants_than_cores_share():
    tenants = [Tenant(name, "m", QoSTarget(100)) for name in "abc"]
    scheduler = Scheduler(make_machine(2), tenants, {"m": [simple_profile((10, 5))]}, "parties", 8)
    held = [scheduler.handle(QueryArrived(0, Query(id, name, 0, 10**12))) for id, name in enumerate("abc", 1)]
    assert [len(decisions) for decisions in held] == [1, 1, 0]
    assert [type(d).__name__ for d in scheduler.handle(BlockFinished(10, 1, 1, 10))] == ["FinishQuery", "StartBlock"]

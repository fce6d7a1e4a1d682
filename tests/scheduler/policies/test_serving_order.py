"""Who gets cores under the block-wise policies, event by event, for each reading of the paper."""

import pytest
from scheduler_builders import arrives, make_machine, make_query, make_tenant, simple_profile, started

from veltair.scheduler.events import BlockFinished, FinishQuery, GrowBlock, QueryArrived, StartBlock
from veltair.scheduler.policies.baselines.fixed_blocks import FixedBlocks
from veltair.scheduler.policies.paper import VeltairFull
from veltair.scheduler.policies.serving_order import ServingOrder
from veltair.scheduler.scheduler import Scheduler
from veltair.types import LayerBlock

EVEN = (40, 20, 14, 10)  # ns on 1 … 4 cores
ONE_LAYER = [FixedBlocks(1), FixedBlocks(1, adapt_versions=True), VeltairFull(), VeltairFull(adapt_versions=False)]


def start(query, layers, cores, predicted_ns, core_set, *, conflict=False):
    first, stop = layers
    return StartBlock(LayerBlock(query, first, stop, (0,) * (stop - first), cores, predicted_ns), core_set, conflict)


@pytest.fixture
def build():
    def make(policy, *layers, qos_ns, cores=4, workers=8):
        profiles = {"m": [simple_profile(*layers)]}
        return Scheduler(make_machine(cores), [make_tenant(qos_ns)], profiles, policy, workers)

    return make


@pytest.fixture
def two_models():
    """Tenant `wide` needs three of four cores for its only layer, tenant `slim` one."""

    def make(order):
        tenants = [make_tenant(14, "wide", "w"), make_tenant(40, "slim", "s")]
        profiles = {name: [simple_profile(EVEN, model=name)] for name in ("w", "s")}
        return Scheduler(make_machine(4), tenants, profiles, FixedBlocks(1, order=order), 8)

    return make


@pytest.mark.parametrize("policy", ONE_LAYER, ids=["layer-wise", "ac", "full", "as"])
def test_a_query_starts_when_the_need_of_its_first_block_is_idle(build, policy):
    scheduler = build(policy, EVEN, qos_ns=14)
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 1), 3, 14, (0, 1, 2))]
    assert scheduler.handle(QueryArrived(1, make_query(2, 1))) == []  # one core is idle
    assert scheduler.handle(BlockFinished(14, 1, 1, 14)) == [FinishQuery(1), start(2, (0, 1), 3, 14, (0, 1, 2))]
    assert scheduler.stats().conflicts == 0


def test_the_first_in_line_holds_up_the_others(two_models):
    scheduler = two_models(ServingOrder())
    assert started(arrives(scheduler, 1, 0, "wide")) == [1]
    assert started(arrives(scheduler, 2, 1, "wide")) == []
    assert started(arrives(scheduler, 3, 2, "slim")) == []  # one core is idle, and would do
    assert started(scheduler.handle(BlockFinished(14, 1, 1, 14))) == [2, 3]


def test_or_lets_those_pass_that_need_less(two_models):
    scheduler = two_models(ServingOrder(dispatch="passing"))
    assert started(arrives(scheduler, 1, 0, "wide")) == [1]
    assert started(arrives(scheduler, 2, 1, "wide")) == []
    assert started(arrives(scheduler, 3, 2, "slim")) == [3]
    assert started(arrives(scheduler, 4, 3, "slim")) == []  # no core is idle
    assert started(scheduler.handle(BlockFinished(14, 1, 1, 14))) == [2]


def test_or_starts_it_with_what_is_free(two_models):
    scheduler = two_models(ServingOrder(dispatch="any-core"))
    assert started(arrives(scheduler, 1, 0, "wide")) == [1]
    assert arrives(scheduler, 2, 1, "wide") == [start(2, (0, 1), 3, 14, (3,), conflict=True)]


@pytest.fixture
def crowded(build):
    """Blocks of two layers that need three cores: query 1 has three, query 2 has lacked two since it came at 1."""

    def make(workers):
        policy = FixedBlocks(2, order=ServingOrder(workers, "any-core"))
        scheduler = build(policy, EVEN, EVEN, EVEN, EVEN, qos_ns=60)
        assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 2), 3, 28, (0, 1, 2))]
        assert scheduler.handle(QueryArrived(1, make_query(2, 1))) == [start(2, (0, 2), 3, 28, (3,), conflict=True)]
        return scheduler

    return make


def test_who_asked_first_is_served_first(crowded):
    assert crowded("asked").handle(BlockFinished(28, 1, 2, 28)) == [
        GrowBlock(2, (0, 1, 3)),
        start(1, (2, 4), 3, 28, (2,), conflict=True),
    ]


def test_or_the_one_that_started_first(crowded):
    assert crowded("oldest").handle(BlockFinished(28, 1, 2, 28)) == [start(1, (2, 4), 3, 28, (0, 1, 2))]


def test_nobody_starts_while_a_worker_wants_cores(build):
    # the second layer needs all four cores, the first one two of them
    scheduler = build(FixedBlocks(1), EVEN, (40, 36, 34, 10), EVEN, qos_ns=60)
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 1), 2, 20, (0, 1))]
    assert scheduler.handle(QueryArrived(1, make_query(2, 1))) == [start(2, (0, 1), 2, 20, (2, 3))]
    assert scheduler.handle(QueryArrived(2, make_query(3, 2))) == []
    # query 1 takes the two that it had; they are not idle for query 3
    assert scheduler.handle(BlockFinished(20, 1, 1, 20)) == [start(1, (1, 2), 4, 10, (0, 1), conflict=True)]
    assert scheduler.handle(BlockFinished(21, 2, 1, 20)) == [start(2, (1, 2), 4, 10, (2, 3), conflict=True)]
    # after its block query 1 needs two cores again, and has them before query 3
    assert scheduler.handle(BlockFinished(57, 1, 2, 36)) == [start(1, (2, 3), 2, 20, (0, 1))]


@pytest.mark.parametrize(("yields", "expected"), [(False, [2, 3]), (True, [3, 2])])
def test_a_late_query_may_yield_to_those_that_can_be_in_time(build, yields, expected):
    scheduler = build(FixedBlocks(1, order=ServingOrder(yields_late=yields)), (40, 20), qos_ns=20, cores=2)
    assert started(scheduler.handle(QueryArrived(0, make_query(1)))) == [1]
    assert started(scheduler.handle(QueryArrived(1, make_query(2, 1)))) == []
    assert started(scheduler.handle(QueryArrived(19, make_query(3, 19)))) == []
    # from 2 on query 2 could not be in time any more; query 3 can until 19 + 20 - 20
    assert started(scheduler.handle(BlockFinished(19, 1, 1, 19))) == expected[:1]
    assert started(scheduler.handle(BlockFinished(39, expected[0], 1, 20))) == expected[1:]

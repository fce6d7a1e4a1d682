"""Layer-wise and fixed blocks, VELTAIR-AC and -AS, event by event."""

import pytest
from scheduler_builders import make_machine, make_profile, make_query, make_tenant, simple_profile, stop_block

from veltair.scheduler.events import BlockFailed, BlockFinished, FinishQuery, GrowBlock, QueryArrived, StartBlock
from veltair.scheduler.interference import ObservedSlowdown
from veltair.scheduler.policies.baselines.fixed_blocks import FixedBlocks
from veltair.scheduler.policies.serving_order import ServingOrder
from veltair.scheduler.scheduler import Scheduler
from veltair.types import LayerBlock

EVEN = (40, 20, 14, 10)  # ns on 1 … 4 cores
STIFF = (40, 36, 34, 33)


@pytest.fixture
def build():
    def make(profile, qos_ns, policy, cores=4, **rest):
        return Scheduler(make_machine(cores), [make_tenant(qos_ns)], {"m": [profile]}, policy, 8, **rest)

    return make


def start(query, layers, cores, predicted_ns, core_set, *, conflict=False, level=1.0, version=0):
    first, stop = layers
    block = LayerBlock(query, first, stop, (version,) * (stop - first), cores, predicted_ns)
    return StartBlock(block, core_set, conflict, level)


def test_each_layer_gets_the_least_cores_that_hold_its_share(build):
    # 120 ns for 40 + 80 of work: 40 for the first layer, 80 for the second
    scheduler = build(simple_profile((40, 20, 14, 10), (80, 90, 90, 90)), 120, "layerwise")
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 1), 1, 40, (0,))]
    # no slack is looked at: the share stays what it is
    assert scheduler.handle(BlockFinished(99, 1, 1, 99)) == [start(1, (1, 2), 1, 80, (0,))]
    assert scheduler.handle(BlockFinished(179, 1, 2, 80)) == [FinishQuery(1)]


def test_a_layer_that_misses_its_share_takes_the_fastest_count_and_is_counted(build):
    scheduler = build(simple_profile((40, 36, 30, 33)), 20, "layerwise")
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 1), 3, 30, (0, 1, 2))]
    assert scheduler.stats().capped_blocks == 1


def test_blocks_are_cut_every_so_many_layers_whatever_stopped_between(build):
    scheduler = build(simple_profile(EVEN, EVEN, EVEN, EVEN, EVEN), 100, FixedBlocks(2))
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 2), 2, 40, (0, 1))]
    stop_block(scheduler, 1)
    assert scheduler.handle(BlockFinished(20, 1, 1, 20)) == [start(1, (1, 2), 2, 20, (0, 1))]
    assert scheduler.handle(BlockFinished(40, 1, 2, 20)) == [start(1, (2, 4), 2, 40, (0, 1))]
    assert scheduler.handle(BlockFinished(80, 1, 4, 40)) == [start(1, (4, 5), 2, 20, (0, 1))]


@pytest.mark.parametrize(("policy", "stop"), [("layerwise", 1), ("block-6", 6), ("block-11", 11)])
def test_the_block_sizes_of_the_paper(build, policy, stop):
    scheduler = build(simple_profile(*[EVEN] * 12), 12 * 40, policy)
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, stop), 1, 40 * stop, (0,))]


def test_who_asked_first_is_served_first_be_it_to_grow_or_to_start(build):
    policy = FixedBlocks(2, order=ServingOrder(dispatch="any-core"))
    scheduler = build(simple_profile(EVEN, EVEN, EVEN, EVEN), 60, policy)  # each block needs 3 of 4 cores
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 2), 3, 28, (0, 1, 2))]
    assert scheduler.handle(QueryArrived(1, make_query(2, 1))) == [start(2, (0, 2), 3, 28, (3,), conflict=True)]
    assert scheduler.handle(QueryArrived(2, make_query(3, 2))) == []
    assert scheduler.stats().conflicts == 1
    # query 2 has lacked two cores since 1, query 3 has waited since 2, query 1 asks at 28
    assert scheduler.handle(BlockFinished(28, 1, 2, 28)) == [
        GrowBlock(2, (0, 1, 3)),
        start(3, (0, 2), 3, 28, (2,), conflict=True),
    ]
    assert scheduler.stats().conflicts == 2


# The first version is fast alone, the second stands the pressure, on more cores
FRAIL = [[[[20, 10], [80, 60]], [[30, 16], [40, 22]]]] * 2


def test_ac_takes_versions_and_cores_for_the_level(build):
    scheduler = build(make_profile(FRAIL, levels=(1.0, 2.0)), 60, "veltair-ac", 2, proxy=ObservedSlowdown(weight=1.0))
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 1), 1, 20, (0,))]
    assert scheduler.handle(QueryArrived(1, make_query(2, 1))) == [start(2, (0, 1), 1, 20, (1,))]
    # twice its time alone: level 2; one neighbour stays for more than a tenth of its block
    assert scheduler.handle(BlockFinished(10, 1, 1, 40)) == [
        start(1, (1, 2), 2, 22, (0,), conflict=True, level=2.0, version=1)
    ]


@pytest.mark.parametrize("policy", ["veltair-as", "layerwise"])
def test_without_adaptive_compilation_the_level_changes_nothing(build, policy):
    scheduler = build(make_profile(FRAIL, levels=(1.0, 2.0)), 60, policy, 2, proxy=ObservedSlowdown(weight=1.0))
    scheduler.handle(QueryArrived(0, make_query(1)))
    scheduler.handle(QueryArrived(1, make_query(2, 1)))
    run = scheduler.state.running_blocks[1]
    scheduler.handle(BlockFinished(10, 1, run.block.stop, 2 * run.predicted_ns))
    for query in list(scheduler.state.in_flight):
        scheduler.handle(BlockFailed(10, query, "died"))
    (again,) = scheduler.handle(QueryArrived(10, make_query(3, 10)))
    assert scheduler.level == 2.0
    assert again.level == 1.0 and set(again.block.versions) == {0}

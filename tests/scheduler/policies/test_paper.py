"""VELTAIR-FULL, event by event."""

import pytest
from scheduler_builders import make_machine, make_profile, make_query, make_tenant, simple_profile, stop_block

from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue
from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    CancelQuery,
    FinishQuery,
    GrowBlock,
    QueryArrived,
    QueryCancelled,
    StartBlock,
)
from veltair.scheduler.interference import ObservedSlowdown
from veltair.scheduler.policies.paper import VeltairFull
from veltair.scheduler.policies.serving_order import ServingOrder
from veltair.scheduler.scheduler import Scheduler
from veltair.types import LayerBlock, Query

EVEN = (40, 20, 14, 10)  # ns on 1 … 4 cores
STIFF = (40, 36, 34, 33)
OLDEST = ServingOrder("oldest", "any-core")


@pytest.fixture
def full():
    def build(profile, qos_ns, sizes, workers=8, policy="veltair-full", split_by_ops=False, **rest):
        known = ProfileCatalogue({"m": [profile]}, sum(sizes), split_by_ops=split_by_ops)
        return Scheduler(make_machine(*sizes), [make_tenant(qos_ns)], known, policy, workers, **rest)

    return build


def start(query, layers, cores, predicted_ns, core_set, *, conflict=False, level=1.0, versions=None):
    first, stop = layers
    versions = (0,) * (stop - first) if versions is None else versions
    return StartBlock(LayerBlock(query, first, stop, versions, cores, predicted_ns), core_set, conflict, level)


def test_blocks_of_a_query_that_is_alone(full):
    # QoS 100, 25 a layer: Avg_C = 2 (96 ns). Alone, thres = 2. The stiff layer needs all 4 cores: a pivot.
    scheduler = full(simple_profile(EVEN, EVEN, STIFF, EVEN), 100, sizes=(4,))
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 2), 2, 40, (0, 1))]
    # their shares are 50 of the 100 ns, whatever the first block took: 48 on 3 cores
    assert scheduler.handle(BlockFinished(99, 1, 2, 99)) == [start(1, (2, 4), 3, 48, (0, 1, 2))]
    assert scheduler.handle(BlockFinished(147, 1, 4, 48)) == [FinishQuery(1)]


def test_against_the_slack_time_won_is_spent(full):
    scheduler = full(simple_profile(EVEN, EVEN, STIFF, EVEN), 100, sizes=(4,), policy=VeltairFull(against_slack=True))
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 2), 2, 40, (0, 1))]
    # 60 ns are left for 80 of work: the block has all of it, and 56 ns on 2 cores do
    assert scheduler.handle(BlockFinished(40, 1, 2, 40)) == [start(1, (2, 4), 2, 56, (0, 1))]
    assert scheduler.handle(BlockFinished(96, 1, 4, 56)) == [FinishQuery(1)]


def test_against_the_slack_time_lost_is_made_up_with_more_cores(full):
    scheduler = full(simple_profile(EVEN, EVEN, STIFF, EVEN), 100, sizes=(4,), policy=VeltairFull(against_slack=True))
    scheduler.handle(QueryArrived(0, make_query(1)))
    # 50 ns are left, 56 are needed on 2 cores, 48 on 3; a share of 25 each makes no pivot of the last layer
    assert scheduler.handle(BlockFinished(50, 1, 2, 50)) == [start(1, (2, 4), 3, 48, (0, 1, 2))]


def test_in_paper_mode_the_operations_split_the_qos(full):
    profile = simple_profile(EVEN, EVEN, flops=(3, 1))
    by_ops = full(profile, 45, sizes=(4,), split_by_ops=True)
    # shares 33.75 and 11.25: the second layer needs 4 cores, the bound; the first one can do with 2
    assert by_ops.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 1), 2, 20, (0, 1))]
    by_time = full(profile, 45, sizes=(4,))
    assert by_time.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 2), 2, 40, (0, 1))]


def test_load_lowers_the_threshold(full):
    # Shares of 25. The second layer needs 3 cores, Avg_C is 2 (45 ns).
    scheduler = full(simple_profile((40, 18, 12, 10), (40, 27, 20, 15)), 50, sizes=(2, 2))
    # alone: thres 2, bound 4, no pivot
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 2), 2, 45, (0, 1))]
    # two of them: thres 0, and the second layer begins a block of its own
    assert scheduler.handle(QueryArrived(0, make_query(2))) == [start(2, (0, 1), 2, 18, (2, 3))]


def test_threshold_decides_whether_a_heavy_layer_begins_a_block(full):
    # Shares of 25. The second layer needs 3 cores, Avg_C is 2 (45 ns).
    layers = ((40, 18, 12, 10), (40, 27, 20, 15))
    narrow = full(simple_profile(*layers), 50, sizes=(3,))  # thres 1, bound 3: need >= 3
    assert narrow.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 1), 2, 18, (0, 1))]
    wide = full(simple_profile(*layers), 50, sizes=(4,))  # thres 2, bound 4: it may take what it needs
    assert wide.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 2), 2, 45, (0, 1))]


THREE = ((30, 16, 12), (30, 16, 12), (30, 16, 12))  # together 90, 48, 36; 2 cores for a QoS of 60


@pytest.fixture
def crowded(full):
    """Query 1 runs on two of three cores until 48, query 2 has wanted two since 5 and got one."""
    policy = VeltairFull(order=OLDEST, against_slack=True)
    scheduler = full(simple_profile(*THREE, nbytes=64), 60, sizes=(3,), policy=policy)
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 3), 2, 48, (0, 1))]
    assert scheduler.handle(QueryArrived(5, make_query(2, 5))) == [start(2, (0, 3), 2, 48, (2,), conflict=True)]
    assert scheduler.stats().conflicts == 1
    return scheduler


def test_a_conflict_starts_with_what_is_free_and_grows_when_cores_are(crowded):
    assert crowded.handle(BlockFinished(48, 1, 3, 48)) == [FinishQuery(1), GrowBlock(2, (0, 2))]
    assert crowded.stats().cores_in_use == 2  # granted is taken
    assert crowded.handle(BlockGrown(65, 2, 2, (0, 2))) == []
    assert crowded.stats().blocks_grown == 1
    assert crowded.level == 1.0
    # 30 + 30 on one core, 16 on two: it took twice as long as alone
    assert crowded.handle(BlockFinished(157, 2, 3, 152)) == [FinishQuery(2)]
    assert crowded.level == pytest.approx(1.2)


def test_growth_takes_all_that_is_missing_at_once_beside_the_block(full):
    layers = ((40, 20, 14, 10),) * 3  # 120, 60, 42, 30
    scheduler = full(simple_profile(*layers), 30, sizes=(2, 4), policy=VeltairFull(order=OLDEST))
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 3), 4, 30, (2, 3, 4, 5))]
    # two averages of 4 exceed the machine: no threshold
    assert scheduler.handle(QueryArrived(0, make_query(2))) == [start(2, (0, 3), 4, 30, (0, 1), conflict=True)]
    scheduler.handle(QueryArrived(0, make_query(3)))
    scheduler.handle(QueryArrived(0, make_query(4)))
    assert scheduler.handle(BlockFailed(1, 1, "died")) == [
        GrowBlock(2, (0, 1, 2, 3)),
        start(3, (0, 3), 4, 30, (4, 5), conflict=True),
    ]
    scheduler.handle(QueryCancelled(2, 4))
    # query 3 stays within its L3, though cores 0 and 1 are free as well
    assert scheduler.handle(BlockFailed(2, 2, "died")) == [GrowBlock(3, (2, 3, 4, 5))]


def test_the_average_need_follows_the_slack(full):
    scheduler = full(simple_profile(*THREE), 60, sizes=(3,), policy=VeltairFull(against_slack=True))
    scheduler.handle(QueryArrived(0, make_query(1)))
    assert scheduler.state.total_avg == 2
    stop_block(scheduler, 1)
    scheduler.handle(BlockFinished(40, 1, 1, 40))  # 20 ns left for 60, 32 or 24
    assert scheduler.state.total_avg == 3


def test_a_deadline_before_the_target_counts_against_the_slack(full):
    scheduler = full(simple_profile(*THREE), 1000, sizes=(3,), policy=VeltairFull(against_slack=True))
    decisions = scheduler.handle(QueryArrived(0, Query(1, "a", 0, deadline_ns=50)))
    assert decisions == [start(1, (0, 3), 2, 48, (0, 1))]


def test_growth_shortens_what_is_predicted_to_remain(crowded):
    run = crowded.state.in_flight[2].run
    assert (run.predicted_ns, run.ends_ns) == (90, 95)  # on one core
    crowded.handle(BlockFinished(48, 1, 3, 48))
    assert (run.predicted_ns, run.ends_ns) == (90, 95)  # granted, not yet taken up
    crowded.handle(BlockGrown(65, 2, 2, (0, 2)))
    assert (run.predicted_ns, run.ends_ns) == (76, 81)


def test_a_block_that_soon_ends_does_not_grow(crowded):
    assert crowded.handle(BlockFinished(86, 1, 3, 86)) == [FinishQuery(1)]


def test_a_single_layer_does_not_grow(full):
    scheduler = full(simple_profile((30, 16, 12)), 20, sizes=(3,), policy=VeltairFull(order=OLDEST))
    scheduler.handle(QueryArrived(0, make_query(1)))
    assert scheduler.handle(QueryArrived(1, make_query(2, 1))) == [start(2, (0, 1), 2, 16, (2,), conflict=True)]
    assert scheduler.handle(BlockFinished(16, 1, 1, 16)) == [FinishQuery(1)]


def test_a_cancelled_block_does_not_grow(crowded):
    assert crowded.handle(QueryCancelled(10, 2)) == [CancelQuery(2)]
    assert crowded.handle(BlockFinished(48, 1, 3, 48)) == [FinishQuery(1)]


def test_cores_go_to_the_older_block_before_a_newer_query_starts(crowded):
    assert crowded.handle(QueryArrived(10, make_query(3, 10))) == []
    freed = crowded.handle(BlockFinished(48, 1, 3, 48))
    # 22 ns are left for query 3: it wants all three cores, and gets the one that is left
    assert freed == [FinishQuery(1), GrowBlock(2, (0, 2)), start(3, (0, 3), 3, 36, (1,), conflict=True)]


def test_a_query_between_blocks_goes_before_one_that_waits_to_start(full):
    scheduler = full(simple_profile(EVEN, EVEN, STIFF, EVEN), 100, sizes=(2, 2))
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 2), 2, 40, (0, 1))]
    assert scheduler.handle(QueryArrived(1, make_query(2, 1))) == [start(2, (0, 2), 2, 40, (2, 3))]
    assert scheduler.handle(QueryArrived(2, make_query(3, 2))) == []
    assert scheduler.handle(BlockFinished(40, 1, 2, 40)) == [start(1, (2, 4), 2, 56, (0, 1))]


def test_a_late_query_is_capped_counted_and_still_served(full):
    scheduler = full(simple_profile(*THREE), 30, sizes=(3,))
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 3), 3, 36, (0, 1, 2))]
    assert scheduler.stats().capped_blocks == 1


def test_a_failed_query_frees_its_cores(crowded):
    assert crowded.handle(BlockFailed(20, 1, "died")) == [GrowBlock(2, (0, 2))]


# Code versions: the first is fast alone, the second stands the pressure
ADAPTIVE = [[[[20, 20], [80, 80]], [[30, 30], [40, 40]]]] * 2


@pytest.fixture
def pressed(full):
    """Two queries on a core each; the first block to end took twice its solo time."""
    scheduler = full(make_profile(ADAPTIVE, levels=(1.0, 2.0)), 1000, sizes=(2,), proxy=ObservedSlowdown(weight=1.0))
    assert scheduler.handle(QueryArrived(0, make_query(1))) == [start(1, (0, 2), 1, 40, (0,))]
    assert scheduler.handle(QueryArrived(60, make_query(2, 60))) == [start(2, (0, 2), 1, 40, (1,))]
    assert scheduler.handle(BlockFinished(80, 1, 2, 80)) == [FinishQuery(1)]
    assert (scheduler.level, scheduler.level_source) == (2.0, "observed")
    return scheduler


def test_versions_follow_the_interference_level(pressed):
    assert pressed.handle(QueryArrived(81, make_query(3, 81))) == [
        start(3, (0, 2), 1, 80, (0,), level=2.0, versions=(1, 1))
    ]


def test_soon_to_finish_neighbours_do_not_count(pressed):
    # query 2 is to end at 100: at 96 it has 10 % of its 40 ns to go
    assert pressed.handle(QueryArrived(96, make_query(3, 96))) == [start(3, (0, 2), 1, 40, (0,))]


def test_neighbours_with_more_than_a_tenth_to_go_count(pressed):
    (started,) = pressed.handle(QueryArrived(95, make_query(3, 95)))
    assert started.level == 2.0


def test_alone_there_is_no_interference(pressed):
    pressed.handle(BlockFailed(82, 2, "died"))
    assert pressed.handle(QueryArrived(83, make_query(3, 83))) == [start(3, (0, 2), 1, 40, (0,))]


def test_only_staying_neighbours_count_by_their_cores(full):
    table = [[[[40] * 4, [80] * 4]]] * 2
    scheduler = full(make_profile(table, levels=(1.0, 2.0)), 1000, sizes=(4,), proxy=ObservedSlowdown(weight=1.0))
    for id, at in ((1, 0), (2, 0), (3, 70)):
        scheduler.handle(QueryArrived(at, make_query(id, at)))
    scheduler.handle(BlockFinished(160, 1, 2, 160))  # level 2.0; of 2 and 3 the first is overdue
    scheduler.state.in_flight[3].run.soon_ns = 1000
    (started,) = scheduler.handle(QueryArrived(161, make_query(4, 161)))
    nearest = min(scheduler.state.grid, key=lambda level: abs(level - 1.5))
    assert started.level == nearest

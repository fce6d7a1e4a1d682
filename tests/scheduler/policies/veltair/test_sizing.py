"""How many cores the product's policy gives a query."""

from scheduler_builders import arrives

from veltair.scheduler.events import BlockFailed, BlockFinished, StopBlock
from veltair.scheduler.policies.veltair.policy import Veltair

PAYS = (100, 55, 39, 35)  # ns on 1 … 4 cores: all pay, and three on a busy machine


def test_who_is_alone_takes_all_cores_that_pay_and_gives_them_back(build):
    scheduler = build(("a", 9000, 1, 10), ("b", 9000, 1, 10), cores=4, times=PAYS)
    (first,) = arrives(scheduler, 1, 0, "a")
    assert first.block.cores == 4
    scheduler = build(("a", 9000, 1, 10), ("b", 9000, 1, 10), cores=4, times=(100, 55, 39, 50))
    (first,) = arrives(scheduler, 1, 0, "a")
    assert first.block.cores == 3  # 3 x 39 <= 1.8 x 100, 4 x 50 is more
    (second,) = arrives(scheduler, 2, 10, "b")
    assert second.block.cores == 1  # it is not alone
    alone = build(("a", 9000, 1, 10), ("b", 9000, 1, 10), cores=2, times=PAYS)
    assert arrives(alone, 1, 0, "a")[0].block.cores == 2
    assert arrives(alone, 2, 10, "b") == [StopBlock(1)]
    decisions = alone.handle(BlockFinished(55, 1, 1, 55))
    assert {d.block.query: (d.block.start, d.block.cores) for d in decisions} == {1: (1, 1), 2: (0, 1)}


def test_idle_cores_go_to_who_starts_and_are_taken_back_from_who_can_spare_most(build):
    eighths = (800, 400, 267, 200, 160, 134, 115, 100)
    scheduler = build(("a", 90_000, 1, 10), ("b", 100_000, 1, 10), cores=8, times=eighths)
    assert [start.block.cores for start in arrives(scheduler, 1, 0, "a")] == [8]
    assert arrives(scheduler, 2, 10, "b") == [StopBlock(1)]
    first, second = scheduler.handle(BlockFinished(100, 1, 1, 100))
    assert (first.block.query, first.block.cores) == (1, 1)  # the other waits
    assert (second.block.query, second.block.cores, second.block.stop) == (2, 7, 10)  # nobody does
    assert arrives(scheduler, 3, 110, "a") == [StopBlock(2)]
    third, again = scheduler.handle(BlockFinished(215, 2, 1, 115))
    assert (third.block.query, third.block.cores) == (3, 1)
    assert (again.block.query, again.block.start, again.block.cores) == (2, 1, 6)


def test_cores_that_a_block_needs_are_not_taken_back(build):
    eighths = (800, 400, 267, 200, 160, 134, 115, 100)
    scheduler = build(("a", 1100, 1, 10), ("b", 9000, 1, 10), cores=8, times=eighths)
    assert [start.block.cores for start in arrives(scheduler, 1, 0, "a")] == [8]
    assert arrives(scheduler, 2, 10, "b") == []  # 990 ns on eight cores are left, and 1090 until it is due
    assert scheduler.state.free == 0


def test_fewer_cores_pay_where_queries_meet_often(build):
    scheduler = build(("a", 9000, 1, 1), cores=4, times=PAYS)

    def ends(now_ns):
        (id, active), *_ = scheduler.state.in_flight.items()
        scheduler.handle(BlockFinished(now_ns, id, 1, active.run.predicted_ns))

    def cores_alone(id, now_ns):
        (start,) = arrives(scheduler, id, now_ns, "a")
        ends(now_ns + 35)
        return start.block.cores

    assert {cores_alone(id, 100 * id) for id in range(40)} == {4}  # 4 x 35 <= 1.8 x 100
    for id in range(40, 100):
        arrives(scheduler, id, 5000, "a")
    for end in range(60):
        ends(5100 + end)
    assert cores_alone(100, 10_000) == 3  # 3 x 39 <= 1.2 x 100
    assert [cores_alone(id, 1000 * id) for id in range(110, 150)][-1] == 4


def test_who_is_left_alone_gets_the_cores_back_once(build):
    layer_ns = 1_000_000
    scheduler = build(("a", 1000 * layer_ns, 1, 10), cores=2, times=[ns * layer_ns // 100 for ns in PAYS])
    (first,) = arrives(scheduler, 1, 0, "a")
    assert first.block.cores == 2
    assert arrives(scheduler, 2, 10, "a") == [StopBlock(1)]
    now_ns = 550_000
    _, second = scheduler.handle(BlockFinished(now_ns, 1, 1, now_ns))
    assert second.block.cores == 1
    failed = scheduler.handle(BlockFailed(now_ns + 10, 2, "died"))
    assert failed == [StopBlock(1)]  # 9 x 0.45 ms are gained
    assert [start.block.cores for start in scheduler.handle(BlockFinished(1_550_000, 1, 2, layer_ns))] == [2]
    assert arrives(scheduler, 3, 1_560_000, "a") == [StopBlock(1)]
    scheduler.handle(BlockFinished(2_100_000, 1, 3, 550_000))
    assert scheduler.handle(BlockFailed(2_100_010, 3, "died")) == []


def test_a_short_rest_stays_on_its_core(build):
    scheduler = build(("a", 10**9, 1, 10), cores=2, times=PAYS)  # 10 x 45 ns to gain
    arrives(scheduler, 1, 0, "a")
    arrives(scheduler, 2, 10, "a")
    scheduler.handle(BlockFinished(55, 1, 1, 55))
    assert scheduler.handle(BlockFailed(60, 2, "died")) == []


def test_cores_that_are_needed_are_not_given_back(build):
    scheduler = build(("a", 1000, 1, 10), ("b", 9000, 1, 10), cores=2, times=PAYS)
    assert arrives(scheduler, 1, 0, "a")[0].block.cores == 2
    assert arrives(scheduler, 2, 10, "b") == []  # on one core the other would be late by 90


def test_two_queries_do_not_stop_each_other_again_and_again(build):
    scheduler = build(("a", 9000, 1, 10), ("b", 1150, 1, 10), cores=2, times=PAYS)
    assert arrives(scheduler, 1, 0, "a")[0].block.cores == 2
    assert arrives(scheduler, 2, 10, "b") == [StopBlock(1)]
    start, stop = scheduler.handle(BlockFinished(55, 1, 1, 55))
    assert (start.block.query, start.block.cores, stop) == (2, 2, StopBlock(2))  # one core would do, barely
    (again,) = scheduler.handle(BlockFinished(56, 2, 0, 1))
    assert (again.block.query, again.block.cores) == (2, 2)  # the other has had its way once


def test_blocks_leave_part_of_the_time_unplanned(build):
    assert arrives(build(("a", 118, 1, 1), cores=4), 1, 0, "a")[0].block.cores == 1  # 100 <= 0.85 x 118
    assert arrives(build(("a", 117, 1, 1), cores=4), 1, 0, "a")[0].block.cores == 2


def test_blocks_on_several_cores_that_collapse_are_avoided(build):
    policy = Veltair()
    scheduler = build(("a", 110, 1, 1), cores=2, policy=policy)
    (decision,) = arrives(scheduler, 1, 0, "a")
    assert decision.block.cores == 2  # one core takes 100 of 93
    policy._corrections["a"].several = 4.0
    scheduler.handle(BlockFailed(1, 1, "died"))
    (decision,) = arrives(scheduler, 2, 1000, "a")
    assert decision.block.cores == 1

"""PREMA's tokens, event by event."""

import pytest
from scheduler_builders import make_machine, make_query, simple_profile, stop_block

from veltair.scheduler.events import BlockFinished, FinishQuery, QueryArrived, StartBlock, StopBlock
from veltair.scheduler.policies.baselines.prema import threshold_of
from veltair.scheduler.scheduler import Scheduler
from veltair.types import LayerBlock, QoSTarget, Tenant


@pytest.mark.parametrize(("most", "threshold"), [(1, 1), (2.9, 1), (3, 3), (8.9, 3), (9, 9), (40, 9), (0.5, 1)])
def test_the_threshold_is_the_largest_level_reached(most, threshold):
    assert threshold_of(most) == threshold


@pytest.fixture
def prema():
    """Tenants low, mid and high of a model of 4 layers, 100 ns each on both cores, and one short, of 1 layer of 10."""
    long, short = simple_profile(*[(150, 100)] * 4, model="long"), simple_profile((15, 10), model="short")
    tenants = [
        Tenant(name, model, QoSTarget(10**6), priority)
        for name, model, priority in (
            ("low", "long", 1),
            ("mid", "long", 3),
            ("high", "long", 9),
            ("short", "short", 1),
        )
    ]
    return Scheduler(make_machine(2), tenants, {"long": [long], "short": [short]}, "prema", 8)


def start(query, first, stop):
    return StartBlock(LayerBlock(query, first, stop, (0,) * (stop - first), 2, 100 * (stop - first)), (0, 1))


def test_a_higher_priority_takes_the_machine_at_the_next_layer(prema):
    assert prema.handle(QueryArrived(0, make_query(1, tenant="low"))) == [start(1, 0, 4)]
    assert prema.handle(QueryArrived(30, make_query(2, tenant="high"))) == [StopBlock(1)]
    # high has 9 tokens; low reaches 9 of them after 8 x 400 ns, long after high has ended
    assert prema.handle(BlockFinished(100, 1, 1, 100)) == [start(2, 0, 4)]
    assert prema.handle(BlockFinished(500, 2, 4, 400)) == [FinishQuery(2), start(1, 1, 4)]


def test_among_candidates_the_shortest_runs(prema):
    assert prema.handle(QueryArrived(0, make_query(1, tenant="low"))) == [start(1, 0, 4)]
    assert prema.handle(QueryArrived(10, make_query(2, tenant="short"))) == [StopBlock(1)]
    short = StartBlock(LayerBlock(2, 0, 1, (0,), 2, 10), (0, 1))
    assert prema.handle(BlockFinished(100, 1, 1, 100)) == [short]
    # one that takes longer than what is left of the owner does not stop it
    assert prema.handle(BlockFinished(110, 2, 1, 10)) == [FinishQuery(2), start(1, 1, 4)]
    assert prema.handle(QueryArrived(120, make_query(3, tenant="low"))) == []


def test_a_block_goes_on_to_the_end_if_no_tokens_reach_a_level_before(prema):
    assert prema.handle(QueryArrived(0, make_query(1, tenant="mid"))) == [start(1, 0, 4)]
    assert prema.handle(QueryArrived(0, make_query(2, tenant="low"))) == []  # 1 token, the threshold is 3
    # stopped from outside after a layer, 100 ns: mid keeps its 3 tokens, low has 1.25 and is at 3 after 700 more
    stop_block(prema, 1)
    assert prema.handle(BlockFinished(100, 1, 1, 100)) == [start(1, 1, 4)]
    stop_block(prema, 1)
    assert prema.handle(BlockFinished(500, 1, 2, 400)) == [start(1, 2, 4)]  # 2.25; at 3 at 800: not before the end
    stop_block(prema, 1)
    assert prema.handle(BlockFinished(690, 1, 3, 190)) == [start(1, 3, 4)]
    # 1 + 900/400 = 3.25 tokens, and nobody else
    assert prema.handle(BlockFinished(900, 1, 4, 210)) == [FinishQuery(1), start(2, 0, 4)]


def test_tokens_grow_with_waiting_by_priority_over_isolated_time(prema):
    prema.handle(QueryArrived(0, make_query(1, tenant="low")))
    prema.handle(QueryArrived(0, make_query(2, tenant="low")))
    prema.handle(QueryArrived(0, make_query(3, tenant="low")))
    # 2 and 3 are at 3 tokens after 800 ns; 1 ends before that
    assert prema.handle(BlockFinished(400, 1, 4, 400)) == [FinishQuery(1), start(2, 0, 4)]
    # the candidates' threshold rises to 3 at 800, at the end of 2
    assert prema.handle(BlockFinished(800, 2, 4, 400)) == [FinishQuery(2), start(3, 0, 4)]


def test_the_choice_is_made_anew_when_the_threshold_rises(prema):
    prema.handle(QueryArrived(0, make_query(1, tenant="mid")))
    prema.handle(QueryArrived(0, make_query(2, tenant="mid")))
    stop_block(prema, 1)
    prema.handle(BlockFinished(100, 1, 1, 100))
    stop_block(prema, 1)
    # 2 has 3.75 and reaches 9 at 800: a block of 1 that starts at 650 with 3 layers to go ends at the first boundary
    assert prema.handle(BlockFinished(650, 1, 1, 0)) == [start(1, 1, 3)]
    assert prema.handle(BlockFinished(850, 1, 3, 200)) == [start(2, 0, 4)]  # 9.4 tokens: the only candidate


def test_the_next_of_its_kind_may_raise_the_threshold_past_the_owner(prema):
    prema.handle(QueryArrived(0, make_query(1, tenant="low")))
    prema.handle(QueryArrived(0, make_query(2, tenant="low")))
    prema.handle(QueryArrived(10, make_query(3, tenant="low", arrival_ns=10)))
    # 2 has 2.75 tokens and keeps them; 3 has 2.725 and reaches 3 after 110 ns
    assert prema.handle(BlockFinished(700, 1, 4, 700)) == [FinishQuery(1), start(2, 0, 2)]
    # 2 then reaches 3 after 100 ns, and is the shorter one
    assert prema.handle(BlockFinished(900, 2, 2, 200)) == [start(3, 0, 1)]
    assert prema.handle(BlockFinished(1000, 3, 1, 100)) == [start(2, 2, 4)]

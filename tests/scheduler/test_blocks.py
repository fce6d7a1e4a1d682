from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_builders import simple_profile

from veltair.scheduler.blocks import Budget, FormedBlock, find_pivots, form_block, threshold, with_short_rest
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_costs import ProfileCosts

EVEN = (40, 20, 14, 10)  # ns on 1 … 4 cores
STIFF = (40, 36, 34, 33)  # hardly faster on more


def whole(costs, qos_ns):
    return Budget(qos_ns, costs.time_work[-1], costs.time_work)


def test_threshold_splits_the_idle_cores_by_average_need():
    # Section 4.3: A, B and C use 12, 12 and 24 of 64 cores
    assert [threshold(avg, 48, 64) for avg in (12, 12, 24)] == [4, 4, 8]
    assert threshold(10, total_avg=70, machine_cores=64) == 0
    assert threshold(3, total_avg=3, machine_cores=64) == 61


@given(st.lists(st.integers(1, 64), min_size=1, max_size=20), st.integers(1, 128))
def test_averages_and_thresholds_fit_the_machine_together(averages, cores):
    total = sum(averages)
    extra = [threshold(avg, total, cores) for avg in averages]
    assert min(extra) >= 0
    assert total + sum(extra) <= max(cores, total)


@pytest.mark.parametrize(
    ("layers", "qos_ns", "avg", "bound", "expected"),
    [
        # q = 25 each: an even layer needs 2 cores, a stiff one cannot do it at all and needs 4
        ((EVEN, EVEN, STIFF, EVEN), 100, 2, 4, [2]),
        ((STIFF, EVEN, EVEN, EVEN), 100, 2, 4, []),  # the first layer never ends a block
        ((EVEN, STIFF, STIFF, EVEN), 100, 2, 4, [1, 2]),
        # q = 15: an even layer needs 3, above Avg_C = 2 and not below the bound: >=
        ((EVEN, EVEN), 30, 2, 3, [1]),
        ((EVEN, EVEN), 30, 2, 4, []),
        # q = 20: it needs 2; at thres = 0 the average itself is no pivot
        ((EVEN, EVEN), 40, 2, 2, []),
        # nobody can need more than all
        ((STIFF, STIFF), 10, 4, 4, []),
        # q = 19, one ns short
        ((EVEN, EVEN), 39, 2, 2, [1]),
    ],
)
def test_pivots(layers, qos_ns, avg, bound, expected):
    costs = ProfileCosts(simple_profile(*layers), (1.0,), 4)
    assert list(find_pivots(costs, SOLO, 0, whole(costs, qos_ns), avg, bound)) == expected


def test_a_block_ends_before_the_pivot_and_the_next_one_begins_with_it():
    costs = ProfileCosts(simple_profile(EVEN, EVEN, STIFF, EVEN), (1.0,), 4)
    budget = whole(costs, 100)
    first = form_block(costs, SOLO, 0, budget, 2, 4)
    assert (first.start, first.stop, first.cores, first.qos_ns) == (0, 2, 2, 50)
    second = form_block(costs, SOLO, first.stop, budget, 2, 4)
    assert (second.start, second.stop, second.cores, second.qos_ns) == (2, 4, 3, 50)  # 34 + 14 <= 50 < 36 + 20


def test_a_short_rest_is_part_of_the_block_before_it():
    times = [(1000, 500), (1000, 500), (40, 40)]  # the last layer is a pivot wherever the QoS is tight
    costs = ProfileCosts(simple_profile(*times), (1.0,), 2)
    budget = whole(costs, 2040)
    formed = FormedBlock(0, 2, 1, budget.share_ns(0, 2), capped=False)
    assert with_short_rest(formed, costs, budget) == FormedBlock(0, 3, 1, 2040, capped=False)
    earlier = FormedBlock(0, 1, 1, budget.share_ns(0, 1), capped=False)
    assert with_short_rest(earlier, costs, budget) == earlier
    longer = ProfileCosts(simple_profile(*times[:2], (41, 41)), (1.0,), 2)  # more than a fiftieth
    assert with_short_rest(formed, longer, whole(longer, 2041)) == formed


def test_without_a_pivot_the_rest_is_one_block():
    costs = ProfileCosts(simple_profile(EVEN, EVEN, EVEN), (1.0,), 4)
    formed = form_block(costs, SOLO, 1, whole(costs, 75), 2, 2)
    assert (formed.start, formed.stop, formed.cores, formed.qos_ns, formed.capped) == (1, 3, 2, 50, False)


def test_neighbouring_heavy_layers_are_merged_until_their_need_fits():
    heavy = (30, 26, 26, 26)
    costs = ProfileCosts(simple_profile(heavy, heavy, EVEN, EVEN), (1.0,), 4)
    # work 30 30 40 40 of 140, QoS 112: shares 24 24 32 32. Both heavy layers miss 24 on any number of cores,
    # even together (52 > 48); with all of the rest 26 + 26 + 20 + 20 <= 112.
    formed = form_block(costs, SOLO, 0, whole(costs, 112), 2, 2)
    assert (formed.stop, formed.cores, formed.capped) == (4, 2, False)


def test_where_nothing_fits_the_block_is_capped_at_the_nearest_pivot():
    costs = ProfileCosts(simple_profile(STIFF, EVEN, STIFF, STIFF), (1.0,), 4)
    formed = form_block(costs, SOLO, 0, whole(costs, 80), 2, 3)  # shares of 20
    assert (formed.start, formed.stop, formed.cores, formed.capped) == (0, 2, 3, True)
    assert formed.qos_ns == 40


def test_a_capped_block_takes_the_fastest_count_within_the_bound():
    costs = ProfileCosts(simple_profile((40, 30, 35, 10)), (1.0,), 4)
    formed = form_block(costs, SOLO, 0, whole(costs, 20), 2, 3)
    assert (formed.cores, formed.capped) == (2, True)


def test_layers_without_counted_operations_have_next_to_no_share_in_paper_mode():
    costs = ProfileCosts(simple_profile(EVEN, EVEN, flops=(119, 0)), (1.0,), 4, split_by_ops=True)
    budget = Budget(60, costs.work[-1], costs.work)
    assert (budget.share_ns(0, 1), budget.share_ns(1, 2), budget.share_ns(0, 2)) == (59, 0, 60)
    assert list(find_pivots(costs, SOLO, 0, budget, 1, 3)) == [1]


def test_no_work_at_all_shares_everything():
    assert Budget(60, 0, [0, 0, 0]).share_ns(1, 2) == 60


def rows(numbers):
    """Times of a layer that shrink with the cores, some to a sixth and some hardly, give or take."""
    work_ns, serial = numbers.randint(10, 1000), numbers.random()
    return [round(1 + work_ns * (serial + (1 - serial) / c) * numbers.uniform(0.9, 1.1)) for c in range(1, 7)]


@settings(max_examples=500)
@given(st.integers(0, 2**32))
def test_blocks_progress_and_hold_the_bound(seed):
    numbers = Random(seed)
    layers = [rows(numbers) for _ in range(numbers.randint(1, 12))]
    costs = ProfileCosts(simple_profile(*layers), (1.0,), 6)
    qos_ns = round(numbers.uniform(0, 1.1) * costs.rest_on_one_ns[SOLO][0])
    avg = costs.cores_for_rest(SOLO, 0, qos_ns)
    bound = numbers.randint(avg, 6)
    start = numbers.randrange(len(layers))
    budget = Budget(qos_ns, costs.time_work[-1] - costs.time_work[start], costs.time_work)
    formed = form_block(costs, SOLO, start, budget, avg, bound)
    assert formed.start == start < formed.stop <= len(layers)
    assert 1 <= formed.cores <= bound
    in_time = costs.time_ns(SOLO, formed.cores, formed.start, formed.stop) <= formed.qos_ns
    assert in_time is not formed.capped
    assert budget.share_ns(start, len(layers)) == qos_ns

    # the definition, spelled out: Alg. 2 l. 5 with the layer's own need
    def need(layer):
        share = budget.qos_ns * (budget.work[layer + 1] - budget.work[layer])
        fits = (c for c in range(1, 7) if costs.time_ns(SOLO, c, layer, layer + 1) * budget.work_left <= share)
        return next(fits, 6)

    expected = [layer for layer in range(start + 1, len(layers)) if need(layer) >= bound and need(layer) > avg]
    assert list(find_pivots(costs, SOLO, start, budget, avg, bound)) == expected
    assert formed.stop in {*expected, len(layers)}

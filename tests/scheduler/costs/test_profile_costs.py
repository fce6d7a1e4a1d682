from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_builders import make_profile, simple_profile

from veltair.errors import ProfileError
from veltair.scheduler.costs.level_grid import SOLO, level_grid, nearest_level
from veltair.scheduler.costs.profile_costs import ProfileCosts

CORES = 4
LEVELS = (1.0, 1.5, 3.0)
latencies = st.integers(1, 10**7)
tables = st.lists(st.lists(latencies, min_size=CORES, max_size=CORES), min_size=3, max_size=3)
models = st.lists(st.lists(tables, min_size=1, max_size=3), min_size=1, max_size=5)


def best_ns(profile, layer, level, cores):
    return min(version.latency.at(level, cores) for version in profile.versions[layer])


@given(models)
def test_the_tables_say_what_the_profile_says(layers):
    profile = make_profile(layers, levels=LEVELS)
    grid = level_grid([profile])
    costs = ProfileCosts(profile, grid, machine_cores=64)
    assert costs.cores == CORES  # what was measured
    for at, level in enumerate(grid):
        for cores in range(1, CORES + 1):
            times = [best_ns(profile, layer, level, cores) for layer in range(len(layers))]
            assert costs.time_ns(at, cores, 0, len(layers)) == sum(times)
            assert [costs.time_ns(at, cores, i, i + 1) for i in range(len(layers))] == times
            picked = costs.versions(at, cores, 0, len(layers))
            assert [profile.versions[i][v].latency.at(level, cores) for i, v in enumerate(picked)] == times


@given(models, st.data())
def test_core_needs_are_found_by_scanning(layers, data):
    profile = make_profile(layers, levels=LEVELS)
    grid = level_grid([profile])
    costs = ProfileCosts(profile, grid, CORES)
    at = data.draw(st.integers(0, len(grid) - 1))
    start = data.draw(st.integers(0, len(layers) - 1))
    stop = data.draw(st.integers(start + 1, len(layers)))
    bound = data.draw(st.integers(1, CORES))
    qos_ns = data.draw(st.integers(0, 2 * 10**7))

    def least(stop, cores):
        return next((c for c in range(1, cores + 1) if costs.time_ns(at, c, start, stop) <= qos_ns), None)

    assert costs.least_cores(at, start, stop, qos_ns, bound) == least(stop, bound)
    assert costs.cores_for_rest(at, start, qos_ns) == (least(len(layers), CORES) or CORES)
    fastest = costs.fastest_cores(at, start, stop, bound)
    assert costs.time_ns(at, fastest, start, stop) == min(
        costs.time_ns(at, c, start, stop) for c in range(1, bound + 1)
    )


@given(models, st.floats(0.5, 3.0))
def test_the_most_cores_for_some_core_time_are_found_by_scanning(layers, factor):
    costs = ProfileCosts(make_profile(layers, levels=LEVELS), LEVELS, CORES)
    for at, start in product(range(len(LEVELS)), range(len(layers))):
        core_ns = [cores * costs.time_ns(at, cores, start, len(layers)) for cores in range(1, CORES + 1)]
        most = max((cores for cores in range(2, CORES + 1) if core_ns[cores - 1] <= factor * core_ns[0]), default=1)
        assert [costs.most_cores_within(at, start, factor) for _ in range(2)] == [most] * 2


def test_more_cores_may_be_slower():
    costs = ProfileCosts(simple_profile((50, 20, 40, 30)), (1.0,), 4)
    assert costs.cores_for_rest(SOLO, 0, 30) == 2
    assert costs.least_cores(SOLO, 0, 1, 30, bound=4) == 2
    assert costs.cores_for_rest(SOLO, 0, 10) == 4  # never in time: all
    assert costs.fastest_cores(SOLO, 0, 1, bound=4) == 2
    assert [costs.least_cores(SOLO, 0, 1, 20, bound) for bound in (1, 2, 3, 4)] == [None, 2, 2, 2]
    assert costs.least_cores(SOLO, 0, 1, 19, bound=4) is None


def test_solo_time_of_given_versions():
    costs = ProfileCosts(make_profile([[[[9, 5]]], [[[8, 4]], [[7, 6]]], [[[3, 2]]]]), (1.0,), 2)
    assert costs.solo_ns((1, 0), first=1, start=1, stop=3, cores=2) == 6 + 2
    assert costs.solo_ns((0, 1, 0), first=0, start=1, stop=2, cores=1) == 7


def test_what_the_versions_of_a_level_take_alone():
    # the second layer's other version wins under pressure, and on two cores alone
    layers = [[[[9, 5], [12, 7]]], [[[8, 4], [20, 9]], [[9, 3], [10, 6]]]]
    costs = ProfileCosts(make_profile(layers, levels=(1.0, 2.0)), (1.0, 2.0), 2)
    for level, cores in product((0, 1), (1, 2)):
        picked = costs.versions(level, cores, 0, 2)
        for start, stop in ((0, 1), (0, 2), (1, 2)):
            alone = costs.solo_ns(picked[start:stop], start, start, stop, cores)
            assert costs.alone_ns(level, cores, start, stop) == alone
    assert costs.alone_ns(1, 1, 0, 2) == 9 + 9


def test_the_grid_holds_every_measured_level_and_leaves_no_wide_gap():
    table = [[[[4], [5], [9]]]]
    grid = level_grid(
        [make_profile(table, levels=(1.0, 1.1, 2.0)), simple_profile((3,)), make_profile(table, levels=(1.0, 1.5, 8.0))]
    )
    assert {1.0, 1.1, 1.5, 2.0, 8.0} <= set(grid)
    assert list(grid) == sorted(grid) and grid[0] == 1.0 and grid[-1] == 8.0
    assert all(high / low <= 1.15 + 1e-9 for low, high in pairwise(grid))
    assert level_grid([simple_profile((3,))]) == (1.0,)


@pytest.mark.parametrize(
    ("level", "index"), [(0.5, 0), (1.0, 0), (1.4, 0), (1.5, 0), (1.6, 1), (2.0, 1), (2.9, 1), (3.1, 2), (9.0, 2)]
)
def test_nearest_level(level, index):
    assert nearest_level((1.0, 2.0, 4.0), level) == index


@pytest.mark.parametrize(
    ("layers", "levels", "says"),
    [
        ([], (1.0,), "at least one layer"),
        ([[[[5]]], []], (1.0,), "layer 1 has no code version"),
        ([[[[5], [6]]]], (1.0,), "expected latencies of 1 levels"),
        ([[[[5]]], [[[5, 4]]]], (1.0,), "layer 1, version 0: expected latencies of 1 levels x 1 cores"),
        ([[[[0]]]], (1.0,), "above 0 ns"),
        ([[[[5], [6]]]], (1.0, 1.0), "ascending from 1.0"),
        ([[[[5]]]], (1.5,), "ascending from 1.0"),
    ],
)
def test_a_wrong_profile_is_refused(layers, levels, says):
    with pytest.raises(ProfileError, match=says):
        ProfileCosts(make_profile(layers, levels=levels), (1.0,), 4)

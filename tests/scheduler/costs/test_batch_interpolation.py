"""Profiles of batch sizes between the timed ones."""

import pytest
from scheduler_builders import make_profile, simple_profile

from veltair.errors import ProfileError
from veltair.scheduler.costs.batch_interpolation import interpolate_batches
from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue


def test_one_cores_time_the_gain_of_more_and_operations_lie_on_the_line_between_the_neighbours():
    low = make_profile([[[[10, 10], [20, 8]], [[12, 4], [12, 4]]]], levels=(1.0, 2.0), batch=4, flops=[100], nbytes=7)
    high = make_profile(
        [[[[30, 15], [40, 10]], [[32, 8], [32, 4]]]], levels=(1.0, 2.0), batch=14, flops=[200], nbytes=17
    )
    sizes = {each.batch: each for each in interpolate_batches([low, high])}
    assert list(sizes) == [4, 5, 7, 9, 12, 14]
    assert (sizes[4], sizes[14]) == (low, high)
    between = sizes[9]
    first, second = between.versions[0]
    assert first.latency.latency_ns == ((20, 13), (30, 9))  # gains 1.5 and 3.25
    assert second.latency.latency_ns == ((22, 6), (22, 4))  # 3.5 and 5.5
    assert (between.layers[0].flops, between.layers[0].bytes) == (150, 12)


def test_a_version_that_splits_the_larger_batch_alone_is_not_flattered():
    """Tiles of 256 rows, measured at 64 and 512: two cores gain nothing at the former."""
    large, small = ([[420, 410]], [[420, 230]]), ([[3880, 1360]], [[4160, 2030]])
    low, high = make_profile([list(large)], batch=64), make_profile([list(small)], batch=512)
    at_256 = next(each for each in interpolate_batches([low, high]) if each.batch >= 240)
    tiled, fine = (version.latency.at(1.0, 2) for version in at_256.versions[0])
    assert fine < tiled


def test_a_profile_is_checked_before_others_are_made_of_it():
    low, high = make_profile([[[[10, 6]]]], batch=1), make_profile([[[[80, 0]]]], batch=8)
    with pytest.raises(ProfileError, match=r"\(batch 8\): layer 0, version 0: expected latencies above 0 ns"):
        ProfileCatalogue({"m": [low, high]}, 2)


def test_profiles_of_other_versions_have_nothing_between():
    one = simple_profile((10,), batch=1)
    for other in (
        simple_profile((80,), (80,), batch=8),
        make_profile([[[[80]], [[90]]]], batch=8),
        make_profile([[[[80], [90]]]], levels=(1.0, 2.0), batch=8),
        simple_profile((80, 40), batch=8),
    ):
        assert list(interpolate_batches([one, other])) == [one, other]
    assert list(interpolate_batches([one])) == [one]

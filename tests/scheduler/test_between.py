"""Profiles of batch sizes between the timed ones."""

from veltair.scheduler.between import filled


def test_times_and_operations_lie_on_the_line_between_the_neighbours(profile):
    low = profile([[[[10, 6], [20, 9]], [[12, 4], [12, 4]]]], levels=(1.0, 2.0), batch=4, flops=[100], nbytes=7)
    high = profile([[[[30, 16], [40, 9]], [[32, 24], [32, 8]]]], levels=(1.0, 2.0), batch=14, flops=[200], nbytes=17)
    sizes = {each.batch: each for each in filled([low, high])}
    assert list(sizes) == [4, 5, 7, 9, 12, 14]
    assert (sizes[4], sizes[14]) == (low, high)
    between = sizes[9]
    first, second = between.versions[0]
    assert first.latency.latency_ns == ((20, 11), (30, 9))
    assert second.latency.latency_ns == ((22, 14), (22, 6))
    assert (between.layers[0].flops, between.layers[0].bytes) == (150, 12)


def test_profiles_of_other_versions_have_nothing_between(simple, profile):
    one = simple((10,), batch=1)
    for other in (
        simple((80,), (80,), batch=8),
        profile([[[[80]], [[90]]]], batch=8),
        profile([[[[80], [90]]]], levels=(1.0, 2.0), batch=8),
        simple((80, 40), batch=8),
    ):
        assert list(filled([one, other])) == [one, other]
    assert list(filled([one])) == [one]

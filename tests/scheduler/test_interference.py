import pytest

from veltair.scheduler.interference import (
    BlockTimed,
    CounterModel,
    DemandChanged,
    ObservedSlowdown,
    PredictedDemand,
    SteadyLevel,
)
from veltair.types import CounterSample

SAMPLE = CounterSample(time_ns=0, window_ns=1000, l3_accesses=500, l3_misses=100, source="test")


def test_counters_are_a_linear_model():
    proxy = CounterModel(constant=1.0, per_miss_rate=2.0, per_access_per_ns=3.0)
    proxy.observe(SAMPLE)
    assert proxy.level == pytest.approx(1.0 + 2.0 * 0.2 + 3.0 * 0.5)
    proxy.observe(CounterSample(0, 1000, 0, 0, "test"))
    assert proxy.level == 1.0


def test_an_empty_window_says_nothing():
    proxy = CounterModel(3.0, 0.0, 0.0)
    proxy.observe(CounterSample(0, 0, 5, 5, "test"))
    assert proxy.level == 1.0


def test_observed_slowdown_is_smoothed():
    proxy = ObservedSlowdown(weight=0.5)
    proxy.observe(BlockTimed(elapsed_ns=300, solo_ns=100))
    assert proxy.level == 2.0
    proxy.observe(BlockTimed(elapsed_ns=100, solo_ns=100))
    assert proxy.level == 1.5


def test_predicted_demand_is_the_oversubscription_of_the_memory():
    proxy = PredictedDemand(memory_bytes_per_ns=10.0)
    proxy.observe(DemandChanged(25.0))
    assert proxy.level == 2.5
    proxy.observe(DemandChanged(5.0))
    assert proxy.level == 1.0


@pytest.mark.parametrize(("elapsed_ns", "level"), [(1, 1.0), (100_000, 8.0)])
def test_levels_are_clamped(elapsed_ns, level):
    proxy = ObservedSlowdown(weight=1.0)
    proxy.observe(BlockTimed(elapsed_ns, 100))
    assert proxy.level == level


@pytest.mark.parametrize(
    ("proxy", "foreign"),
    [
        (CounterModel(2.0, 0.0, 0.0), [BlockTimed(300, 100), DemandChanged(9.0)]),
        (ObservedSlowdown(), [SAMPLE, DemandChanged(9.0)]),
        (PredictedDemand(1.0), [SAMPLE, BlockTimed(300, 100)]),
    ],
)
def test_each_source_ignores_the_others(proxy, foreign):
    for seen in foreign:
        proxy.observe(seen)
    assert proxy.level == 1.0


def test_noise_around_the_middle_does_not_flip_the_level():
    steady = SteadyLevel((1.0, 2.0, 3.0))
    path = [1.4, 1.6, 1.7, 1.76, 1.6, 1.4, 1.26, 1.2, 2.9, 2.4, 9.0, 1.0]
    assert [steady.follow(level) for level in path] == [0, 0, 0, 1, 1, 1, 1, 0, 2, 2, 2, 0]

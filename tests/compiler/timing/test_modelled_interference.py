"""Modelled levels: the formula by hand, its bounds, and the tables that come of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.compiler.timing.latency_tables import MemoryModel, TimingJob, make_tables, measure_times
from veltair.compiler.timing.measure import Meter
from veltair.compiler.timing.modelled_interference import (
    SHARES,
    MemorySystem,
    data_ns,
    distinct_shares,
    measure_memory,
    modelled_slowdown,
    modelled_slowdowns,
)
from veltair.machine.cache_traffic import LoopLevel
from veltair.machine.topology import usable_machine

# 4 KB of L2, 100 KB of last-level cache, 10 and 2 bytes a nanosecond.
MEMORY = MemorySystem(4096, 100_000, 10.0, 2.0)
SMALL = (LoopLevel(1000, 0, 200_000), LoopLevel(0, 50_000, 60_000))  # keeps 1 KB, or 50 KB and moves less
LARGE = (LoopLevel(1000, 0, 900_000), LoopLevel(80_000, 0, 40_000))


def test_the_longer_of_both_ways_counts() -> None:
    below_l2 = 200_000 - (4096 - 1000) / 49_000 * 140_000
    assert data_ns(SMALL, 1, 1.0, MEMORY) == pytest.approx(max(below_l2 / 10, 60_000 / 2))
    # A tenth: 10 KB of cache, 1 and 0.2 bytes a nanosecond.
    below_llc = 200_000 - (10_000 - 1000) / 49_000 * 140_000
    assert data_ns(SMALL, 1, 0.1, MEMORY) == pytest.approx(max(below_l2 / 1, below_llc / 0.2))


def test_cores_share_what_is_fetched_and_bring_their_rates() -> None:
    assert data_ns(SMALL, 2, 1.0, MEMORY) == pytest.approx(data_ns(SMALL, 1, 1.0, MEMORY) / 2)
    roomy = MemorySystem(4096, 100_000, 1e9, 2.0)
    assert data_ns(LARGE, 2, 1.0, roomy) > 2 * data_ns(LARGE, 1, 1.0, roomy)  # the tasks of both do not fit


def test_what_the_model_keeps_is_not_fetched_from_memory() -> None:
    below_l2 = 200_000 - (4096 - 1000) / 49_000 * 140_000
    assert data_ns(SMALL, 1, 1.0, MEMORY, resident_bytes=90_000) == pytest.approx(below_l2 / 10)
    assert data_ns(SMALL, 1, 1.0, MEMORY, resident_bytes=10**9) == pytest.approx(30_000, rel=0.01)


def test_computing_hides_data_until_it_takes_longer() -> None:
    long = 10 * data_ns(SMALL, 1, 0.1, MEMORY)
    assert modelled_slowdown(long, SMALL, 1, 0.1, MEMORY) == 1.0
    even = data_ns(SMALL, 1, 0.5, MEMORY)
    assert modelled_slowdown(even, SMALL, 1, 0.5, MEMORY) == pytest.approx(1.0)
    assert modelled_slowdown(even, SMALL, 1, 0.1, MEMORY) == pytest.approx(data_ns(SMALL, 1, 0.1, MEMORY) / even)
    # Measured faster than the model thinks possible: its rates are scaled, its ratio stays.
    ratio = data_ns(SMALL, 1, 0.1, MEMORY) / data_ns(SMALL, 1, 1.0, MEMORY)
    assert modelled_slowdown(1, SMALL, 1, 0.1, MEMORY) == pytest.approx(ratio)


def test_large_blocks_win_alone_and_lose_under_pressure() -> None:
    small_ns, large_ns = 32_000, 28_000
    small = [small_ns * modelled_slowdown(small_ns, SMALL, 1, share, MEMORY) for share in SHARES]
    large = [large_ns * modelled_slowdown(large_ns, LARGE, 1, share, MEMORY) for share in SHARES]
    assert large[0] < small[0] and large[-1] > small[-1]


@given(st.floats(1, 1e6), st.integers(1, 64), st.integers(0, 1 << 20))
def test_pressure_never_speeds_up(run_ns: float, cores: int, resident: int) -> None:
    found = [modelled_slowdown(run_ns, LARGE, cores, share, MEMORY, resident) for share in SHARES]
    assert found[0] == 1.0
    assert found == sorted(found)


def test_only_levels_that_differ() -> None:
    assert distinct_shares([1.0, 1.0, 1.004, 1.2, 1.205, 3.0]) == [(0, 1.0), (3, 1.2), (5, 3.0)]


class Alone(Meter):
    """30 and 20 us on 1 and 2 cores; co-runners cost nothing."""

    def time(self, library: Path, symbol: str, operands: object, counts: object = None, **_: object) -> list[int]:  # type: ignore[override]
        assert isinstance(counts, (tuple, range))
        return [{1: 30_000, 2: 20_000}[count] for count in counts]


def test_levels_are_modelled_where_none_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    jobs = [TimingJob(Path("x.so"), name, ((),), 2, (reuse,)) for name, reuse in (("small", SMALL), ("large", LARGE))]
    cores = usable_machine().cores
    cores = (cores[0], cores[-1])
    with Alone(cores) as meter:
        times = measure_times(jobs, meter, (1.0,))
    plain = make_tables(jobs, times)
    found = make_tables(jobs, times, MemoryModel(MEMORY, (0,)))
    assert (plain.levels, plain.sources) == ((1.0,), ("measured",))
    assert found.sources == ("measured", *["modelled"] * (len(found.levels) - 1))
    assert len(found.levels) > 5
    table = modelled_slowdowns(np.array([[[30_000.0, 20_000.0]]] * 2), [(SMALL,), (LARGE,)], MEMORY, (0,))
    assert found.levels[-1] == pytest.approx(table[:, :, -1].mean(), abs=1e-3)
    np.testing.assert_allclose(found.latency_ns[1, 0, -1], table[1, 0, -1] * (30_000, 20_000), atol=1)
    np.testing.assert_array_equal(found.latency_ns[:, 0, 0], [[30_000, 20_000]] * 2)


def test_this_machine_s_memory() -> None:
    memory = measure_memory(usable_machine().cores)
    assert 0 < memory.l2_bytes <= memory.llc_bytes
    assert 0.1 < memory.dram_bytes_per_ns < 1000 and 0.1 < memory.llc_bytes_per_ns < 1000

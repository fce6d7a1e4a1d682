from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.loadgen.arrivals import poisson_arrivals_ns, tenant_rngs

SECOND = 1_000_000_000


@given(
    qps=st.floats(0.01, 5_000),
    duration_ns=st.integers(0, 3 * SECOND),
    seed=st.integers(0, 2**32 - 1),
)
def test_ascending_within_the_duration_and_the_same_for_the_same_seed(qps, duration_ns, seed):
    times = poisson_arrivals_ns(qps, duration_ns, np.random.default_rng(seed))
    assert times.dtype == np.int64
    assert (np.diff(times) >= 0).all()
    assert ((times >= 0) & (times < duration_ns)).all()
    np.testing.assert_array_equal(times, poisson_arrivals_ns(qps, duration_ns, np.random.default_rng(seed)))


@pytest.mark.parametrize("seed", range(5))
def test_gaps_are_exponential_with_the_rate_asked_for(seed):
    times = poisson_arrivals_ns(1_000, 100 * SECOND, np.random.default_rng(seed))
    assert len(times) == pytest.approx(100_000, abs=5 * 100_000**0.5)  # a Poisson count: 5 standard deviations
    gaps = np.diff(times) / 1e6  # mean 1 ms
    assert gaps.mean() == pytest.approx(1, rel=0.02)
    assert gaps.std() == pytest.approx(1, rel=0.03)  # Poisson-drawn or constant gaps fail here
    assert np.quantile(gaps, 0.9) == pytest.approx(np.log(10), rel=0.03)


def test_counts_in_disjoint_windows_scatter_like_poisson_ones():
    times = poisson_arrivals_ns(500, 400 * SECOND, np.random.default_rng(0))
    counts = np.bincount(times // SECOND, minlength=400)
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.25)


@given(qps=st.floats(1, 500), scale=st.floats(1, 50), seed=st.integers(0, 1000))
def test_a_higher_rate_is_the_same_pattern_faster(qps, scale, seed):
    slow = poisson_arrivals_ns(qps, SECOND, np.random.default_rng(seed))
    fast = poisson_arrivals_ns(qps * scale, SECOND, np.random.default_rng(seed))
    assert len(fast) >= len(slow)
    np.testing.assert_allclose(fast[: len(slow)], slow / scale, atol=2)


def test_tenants_are_independent_of_each_other_and_of_the_number_of_draws():
    first, second = tenant_rngs(7, 0), tenant_rngs(7, 1)
    assert len({rng.random() for rng in (*first, *second)}) == 6
    first.arrivals.random(1000)
    again = tenant_rngs(7, 0)
    assert first.picks.random() == again.picks.random(2)[1]

"""Arrival times of a Poisson process, drawn through its exponential gaps."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Times: TypeAlias = NDArray[np.int64]


def poisson_arrivals_ns(qps: float, duration_ns: int, rng: np.random.Generator) -> Times:
    """Arrival times in ns within [0, duration_ns), ascending.

    >>> poisson_arrivals_ns(100, 50_000_000, np.random.default_rng(4)).tolist()
    [37988266, 42296254]

    The gaps are unit exponentials divided by the rate (drawing the *gaps* from a Poisson distribution is the
    common mistake). One seed therefore gives the same pattern at every rate, only faster or slower, so that
    the probes of a peak search differ in nothing else.
    """
    duration = duration_ns / 1e9 * qps  # in mean gaps
    chunk = int(duration + 6 * duration**0.5) + 16
    gaps = rng.standard_exponential(chunk)
    while (total := float(gaps.sum())) < duration:
        gaps = np.concatenate([gaps, rng.standard_exponential(int(duration - total) + 16)])
    times = (np.cumsum(gaps) / qps * 1e9).astype(np.int64)
    return times[times < duration_ns]


class TenantRngs(NamedTuple):
    """Random generators of one tenant, independent of each other and of other tenants'.

    >>> int(tenant_rngs(seed=1, tenant=0).picks.integers(100))
    94
    """

    arrivals: np.random.Generator
    picks: np.random.Generator  # which payload a query carries
    payloads: np.random.Generator


def tenant_rngs(seed: int, tenant: int) -> TenantRngs:
    """The generators of the tenant with this index; the same seed gives the same ones."""
    return TenantRngs(*map(np.random.default_rng, np.random.SeedSequence([seed, tenant]).spawn(3)))

"""When queries arrive: a Poisson process, drawn through its exponential gaps."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Times: TypeAlias = NDArray[np.int64]


def arrivals_ns(qps: float, duration_ns: int, rng: np.random.Generator) -> Times:
    """Arrival times in ns within [0, duration_ns), ascending.

    The gaps are unit exponentials divided by the rate (drawing the *gaps* from a Poisson distribution is the
    common mistake). One seed therefore gives the same pattern at every rate, only faster or slower, which
    pairs the probes of a peak search.
    """
    duration = duration_ns / 1e9 * qps  # in mean gaps
    chunk = int(duration + 6 * duration**0.5) + 16
    gaps = rng.standard_exponential(chunk)
    while (total := float(gaps.sum())) < duration:
        gaps = np.concatenate([gaps, rng.standard_exponential(int(duration - total) + 16)])
    times = (np.cumsum(gaps) / qps * 1e9).astype(np.int64)
    return times[times < duration_ns]


def tenant_rngs(seed: int, tenant: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Generators of one tenant's arrivals and of its payload choices; independent of the other tenants'."""
    arrivals, payloads = np.random.SeedSequence([seed, tenant]).spawn(2)
    return np.random.default_rng(arrivals), np.random.default_rng(payloads)

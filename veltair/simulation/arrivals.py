"""Arrival times of queries in the simulator: open loop, drawn from a seed or read from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from veltair.errors import ConfigError
from veltair.loadgen.arrivals import Times, poisson_arrivals_ns, tenant_rngs
from veltair.simulation.simulation_scenario import MOST_QUERIES, SimulationScenario, TenantWorkload


def draw_arrivals(scenario: SimulationScenario, scale: float, seed: int, duration_ns: int) -> list[Times]:
    """Draws arrival times in [0, duration_ns) for each tenant, ascending, at `scale` times the scenario's rates.

    One seed gives the same pattern at every scale, only faster or slower.
    """
    return [_draw_tenant(tenant, i, scale, seed, duration_ns) for i, tenant in enumerate(scenario.tenants)]


def _draw_tenant(tenant: TenantWorkload, number: int, scale: float, seed: int, duration_ns: int) -> Times:
    qps, rng = tenant.qps * scale, tenant_rngs(seed, number).arrivals
    match tenant.arrivals:
        case "poisson":
            return poisson_arrivals_ns(qps, duration_ns, rng)
        case "even":
            count = int(duration_ns * qps / 1e9)
            times = ((np.arange(count) + rng.random()) / qps * 1e9).astype(np.int64)  # tenants do not march in step
        case "file":
            times = (read_arrival_times(Path(tenant.file or "")) * (1e9 / scale)).astype(np.int64)
    return times[times < duration_ns]


def read_arrival_times(path: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Reads times in seconds, one a line, ascending; skips blank lines and comments that begin with `#`.

    Raises ConfigError, which names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected a text file in UTF-8") from None
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        try:
            time_s = float(text)
        except ValueError:
            raise ConfigError(f"{path}: line {number}: expected a time in seconds, got {text[:40]!r}") from None
        if not 0 <= time_s <= 1e9:  # also not a number
            raise ConfigError(f"{path}: line {number}: expected 0 to 1e9 seconds, got {text}")
        if times and time_s < times[-1]:
            raise ConfigError(f"{path}: line {number}: {time_s} s is earlier than the line before ({times[-1]} s)")
        times.append(time_s)
    if not 1 <= len(times) <= MOST_QUERIES:
        raise ConfigError(f"{path}: expected 1 to {MOST_QUERIES} arrival times, got {len(times)}")
    return np.array(times)

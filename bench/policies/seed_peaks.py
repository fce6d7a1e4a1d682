"""A policy's peak for one seed, and the share of the target that it plans with, for `bench.policies`.

Policies are the daemon's own, by their names there; all read the paper as `bench.paper.readings.TEXT` does.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.paper.experiments import (
    CHOOSING,
    FIXED_SHARE,
    QUERIES,
    TRIAL,
    TRIAL_WIDTH,
    best_share,
    bracket_scale,
    search_peak,
    with_load,
    workload_simulation,
)
from bench.paper.readings import TEXT, policy_name, versions_for
from veltair.loadgen.peak import bisect_scale
from veltair.simulation.simulation import Simulation

OURS = "veltair"
VERSIONS = 5  # of a layer


@dataclass(frozen=True, slots=True)
class ChosenShare:
    """How a policy is asked for its peak; `scale` is the factor on the rates at which other seeds found it."""

    planned_share: float
    scale: float


def choose_share(workload: str, policy: str, percentile: float) -> ChosenShare:
    tried: dict[float, float] = {}

    def trial(share: float) -> float:
        simulation = _simulation(workload, policy, percentile, share, TRIAL)
        held = search_peak(simulation, policy_name(policy, TEXT), CHOOSING, bisect_scale(TRIAL_WIDTH))
        tried[share] = held.scale if held else 0.0
        return tried[share]

    share, scale = (1.0, trial(1.0)) if policy in FIXED_SHARE else best_share(trial)
    return ChosenShare(share, scale)


def peak_qps(workload: str, policy: str, percentile: float, share: float, near: float, seed: int) -> float:
    """Answered queries per second of all tenants; 0 where no rate holds."""
    simulation = _simulation(workload, policy, percentile, share, QUERIES)
    held = search_peak(simulation, policy_name(policy, TEXT), (seed,), bracket_scale(near or 1.0))
    return held.qps if held else 0.0


def _simulation(workload: str, policy: str, percentile: float, share: float, queries: int) -> Simulation:
    base = workload_simulation(workload, percentile, versions_for(policy, TEXT, VERSIONS))
    return with_load(base, planned_share=share, domain_aware=policy == OURS, queries=queries)

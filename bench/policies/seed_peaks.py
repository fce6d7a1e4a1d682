"""A policy's peak for one seed, and the share of the target that it plans with, for `bench.policies`.

Policies are the daemon's own, by their names there; all read the paper as `bench.paper.readings.TEXT` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from bench.paper.experiments import bracket_scale, search_peak, with_load, workload_simulation
from bench.paper.readings import TEXT, policy_name, versions_for
from bench.policies import planned_share
from bench.policies.planned_share import Steps
from veltair.simulation.peak_search import RateTrial

OURS = "veltair"
VERSIONS = 5  # of a layer
Setting: TypeAlias = tuple[str, str, float, int]  # workload, machine model, factor on the targets, queries of a run


@dataclass(frozen=True, slots=True)
class ChosenShare:
    """How a policy is asked for its peak; `scale` is the factor on the rates at which other seeds found it."""

    planned_share: float
    scale: float


def choose_share(setting: Setting, policy: str, percentile: float) -> ChosenShare:
    share, scale, _ = planned_share.choose_share(policy, partial(_search, setting, policy, percentile))
    return ChosenShare(share, scale)


def peak_qps(setting: Setting, policy: str, percentile: float, share: float, near: float, seed: int) -> float:
    """Answered queries per second of all tenants; 0 where no rate holds."""
    held = _search(setting, policy, percentile, share, (seed,), setting[3], bracket_scale(near or 1.0))
    return held.qps if held else 0.0


def _search(
    setting: Setting, policy: str, percentile: float, share: float, seeds: Sequence[int], queries: int, steps: Steps
) -> RateTrial | None:
    workload, machine, relaxed, _ = setting
    base = workload_simulation(
        workload, percentile, versions_for(policy, TEXT, VERSIONS), machine=machine, relaxed=relaxed
    )
    simulation = with_load(base, planned_share=share, domain_aware=policy == OURS, queries=queries)
    return search_peak(simulation, policy_name(policy, TEXT), seeds, steps)

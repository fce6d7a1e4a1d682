"""The paper's experiments on the simulator: the numbers that `bench.paper.figures` draws.

Each function runs one experiment on the model of the paper's machine and returns its results by policy and load. Peaks
are found with three seeds, as `veltair simulate --find-peak` does. A policy that takes only as many cores as the target
needs is late as soon as a co-runner comes, so each policy plans with the share of the target that suits it best.

The paper's policies get cores by number, because the paper does not speak of L3 domains; `veltair` gets them by domain.
A suffix after `@` names a variant: `@domains` hands out cores by domain, `@fixed` gives each layer of FULL its share of
the whole target, however much time is left (another reading of section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.paths import SCENARIOS
from veltair.compiler.tuning import frontier
from veltair.scheduler.costs.level_grid import SOLO, level_grid
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.policies.by_name import POLICIES
from veltair.scheduler.policies.paper import VeltairFull
from veltair.simulation.machine_model import modelled_profiles
from veltair.simulation.machine_model.calibration import calibrate
from veltair.simulation.machine_model.counter_fit import CounterFit, SlowdownSample
from veltair.simulation.machine_model.layer_shapes import load_model_shape
from veltair.simulation.machine_model.machine_model import load_machine_model
from veltair.simulation.machine_model.tilings import enumerate_tilings
from veltair.simulation.peak_search import RateTrial, find_peak, try_scale
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import (
    SimulationScenario,
    TenantWorkload,
    WorkloadShape,
    read_simulation_scenario,
)

MACHINE = "threadripper-3990x"  # the paper's
WORKLOADS = ("light", "medium", "heavy", "mix")
GRANULARITIES = ("fcfs", "layerwise", "block-6", "block-11")
STACKS = ("prema", "planaria", "veltair-as", "veltair-ac", "veltair-full", "veltair")
SEEDS = (1, 2, 3)
VARIANTS = ("veltair-full@domains", "veltair-full@fixed")
SHARES = (1.0, 0.8, 0.65, 0.5)  # of each target, tried as the planned share
PLANNED = 0.8  # the share where none is searched
QUERIES = 1500  # of one run
TRIAL = 500  # of one run that only searches the best share
FIXED_SHARE = {"prema", "veltair"}  # one takes all cores, the other leaves a part of the target unplanned itself
RESNET_MS = 15.0


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest rate at which every tenant keeps its percentile, and the results at that rate."""

    workload: str
    policy: str
    percentile: float
    versions: int
    planned_share: float
    qps: float  # 0: none held
    conflict_rate: float
    core_ms_per_query: float
    mean_ms: Mapping[str, float]  # by tenant, of what was answered
    qos_rate: Mapping[str, float]


def peak(workload: str, policy: str, percentile: float = 0.95, versions: int = 5) -> Peak:
    POLICIES.setdefault("veltair-full@fixed", partial(VeltairFull, against_slack=False))
    aware, name = policy == "veltair" or policy.endswith("@domains"), policy.removesuffix("@domains")

    def best(share: float, seeds: Sequence[int], queries: int) -> RateTrial | None:
        simulation = _simulation(workload, percentile, versions, share, aware, queries)
        held = [it for it in find_peak(simulation, name, seeds) if it.held]
        return max(held, key=lambda tried: tried.scale, default=None)

    tried = {share: best(share, SEEDS[:1], TRIAL) for share in SHARES} if policy not in FIXED_SHARE else {}
    share = max(tried, key=lambda share: it.scale if (it := tried[share]) else 0.0, default=1.0)
    held = best(share, SEEDS, QUERIES)
    if held is None:
        return Peak(workload, policy, percentile, versions, share, 0.0, 0.0, 0.0, {}, {})
    return Peak(workload, policy, percentile, versions, share, held.qps, *_cost(held), _means(held), _rates(held))


@dataclass(frozen=True, slots=True)
class Point:
    """Results of one policy at one load."""

    policy: str
    qps: float
    qos_rate: float
    mean_ms: float
    conflict_rate: float
    core_ms_per_query: float


def resnet(policy: str, qps: float, queries: int) -> Point:
    """Runs ResNet-50 alone with evenly spaced arrivals, as in section 3.2."""
    tenant = TenantWorkload(name="resnet50", model="resnet50", qps=1.0, target_ms=RESNET_MS, arrivals="even")
    load = WorkloadShape(
        queries=queries, planned_share=PLANNED, layer_qos="ops", domain_aware=False, grows_inside_layers=True
    )
    return _point(_build(SimulationScenario((tenant,), load)), policy, qps)


def loaded(workload: str, policy: str, scale: float) -> Point:
    """Runs a workload at `scale` times its scenario's rates."""
    return _point(_simulation(workload, 0.95, 5, PLANNED), policy, scale)


def solo_ms(workload: str) -> dict[str, float]:
    """Returns the shortest time of a query alone on the machine, over all core counts, by tenant."""
    simulation = _simulation(workload, 0.95, 5, 1.0)
    found = {}
    for load in simulation.scenario.tenants:
        costs = costs_of(simulation, load.model)
        found[load.name] = costs.least_rest_ns[SOLO][0] / 1e6
    return found


def costs_of(simulation: Simulation, model: str) -> ProfileCosts:
    profile = simulation.profiles[model][0]
    return ProfileCosts(profile, level_grid([profile]), len(simulation.machine.cores), split_by_ops=True)


def resnet_simulation() -> Simulation:
    return _build(
        SimulationScenario((TenantWorkload(name="resnet50", model="resnet50", qps=1.0, target_ms=RESNET_MS),))
    )


def version_counts(workload: str = "mix") -> dict[int, int]:
    """Returns how many layers of all models keep one, two, … code versions."""
    counts: dict[int, int] = {}
    for by_batch in _simulation(workload, 0.95, 5, 1.0).profiles.values():
        for of_layer in by_batch[0].versions:
            counts[len(of_layer)] = counts.get(len(of_layer), 0) + 1
    return counts


def version_losses(allowed: Sequence[float]) -> tuple[dict[str, list[float]], list[dict[int, int]]]:
    """Returns what it costs to keep fewer code versions than one for each pressure.

    All layers with products count, each on the cores that its model needs alone. First the mean loss of one to five
    versions at each pressure, then for each allowed loss how many layers need one, two, … versions. A single version
    is the fastest without pressure.
    """
    simulation = _simulation("mix", 0.95, 5, 1.0)
    losses: dict[str, list[NDArray[np.float64]]] = {str(count): [] for count in range(1, 6)}
    needed: list[dict[int, int]] = [{} for _ in allowed]
    for tenant in simulation.scenario.tenants:
        costs = costs_of(simulation, tenant.model)
        cores, _ = costs.cores_for(SOLO, 0, costs.layers, tenant.target_ns)
        for shape in load_model_shape(tenant.model).layers:
            if shape.m:
                candidates = enumerate_tilings(shape, simulation.model, cores)
                times = modelled_profiles.pressed_ns(shape, candidates, simulation.model)
                _count_losses(times[:, :, cores - 1], losses, zip(allowed, needed, strict=True))
    return {count: np.mean(each, axis=0).tolist() for count, each in losses.items()}, needed


def _count_losses(
    times_ns: NDArray[np.float64], losses: Mapping[str, list[Any]], needed: Iterable[tuple[float, dict[int, int]]]
) -> None:
    """`times_ns`: (candidates, pressures)."""
    best, ten = times_ns.min(axis=0), times_ns[sorted(set(times_ns.argmin(axis=0).tolist()))]
    for count, found in losses.items():
        kept = times_ns[[times_ns[:, 0].argmin()]] if count == "1" else ten[frontier.drop_least_missed(ten, int(count))]
        found.append(kept.min(axis=0) / best - 1)
    for loss, counts in needed:
        least = len(frontier.prune_versions(ten, max_loss=loss))
        counts[least] = counts.get(least, 0) + 1


def offered_qps(workload: str) -> float:
    """Returns the rate of a workload's scenario, all tenants together."""
    return _simulation(workload, 0.95, 5, 1.0).scenario.qps


def proxy() -> tuple[list[SlowdownSample], CounterFit]:
    """Returns counter samples of the machine with random co-runners, and the linear model fitted to them."""
    simulation = _simulation("mix", 0.95, 5, 1.0)
    profiles = {name: by_batch[0] for name, by_batch in simulation.profiles.items()}
    samples = calibrate(simulation.model, simulation.machine, profiles, simulation.execution_rates)
    return samples, simulation.counter_fit


@cache
def _simulation(
    workload: str, percentile: float, versions: int, share: float, domain_aware: bool = False, queries: int = QUERIES
) -> Simulation:
    scenario = read_simulation_scenario(SCENARIOS / f"{workload}.toml")
    tenants = tuple(msgspec.structs.replace(tenant, percentile=percentile) for tenant in scenario.tenants)
    load = msgspec.structs.replace(scenario.load, queries=queries, planned_share=share, domain_aware=domain_aware)
    return _build(SimulationScenario(tenants, load), versions)


def _build(scenario: SimulationScenario, versions: int = 5) -> Simulation:
    model = load_machine_model(MACHINE)
    return Simulation(scenario, model, modelled_profiles.scenario_models(scenario, model, versions=versions))


def _point(simulation: Simulation, policy: str, scale: float) -> Point:
    seen = try_scale(simulation, policy, SEEDS[:1], scale)
    conflicts, core_ms = _cost(seen)
    latency = np.concatenate([outcome.latency_ns for outcome in seen.outcomes])
    offered = sum(outcome.offered for outcome in seen.outcomes)
    within = sum(outcome.in_time for outcome in seen.outcomes)
    mean_ms = float(latency.mean()) / 1e6 if len(latency) else 0.0
    return Point(policy, seen.offered_qps, within / offered, mean_ms, conflicts, core_ms)


def _cost(seen: RateTrial) -> tuple[float, float]:
    blocks, served = sum(run.blocks for run in seen.runs), sum(outcome.served for outcome in seen.outcomes)
    conflicts = sum(run.conflicts for run in seen.runs) / blocks if blocks else 0.0
    return conflicts, sum(run.core_ns for run in seen.runs) / 1e6 / served if served else 0.0


def _means(seen: RateTrial) -> dict[str, float]:
    return {
        outcome.name: float(outcome.latency_ns.mean()) / 1e6 for outcome in seen.outcomes if len(outcome.latency_ns)
    }


def _rates(seen: RateTrial) -> dict[str, float]:
    return {outcome.name: outcome.qos_rate for outcome in seen.outcomes if outcome.qos_rate is not None}

"""The paper's experiments on the simulator: the numbers that `bench.paper.figures` draws.

Each function runs one experiment on the model of the paper's machine and returns its results by policy and load. Peaks
are found with two seeds. A policy that takes only as many cores as the target needs is late as soon as a co-runner
comes, so each policy plans with the share of the target that suits it best; other seeds choose that share than those
that score it.

The paper's policies get cores by number, because the paper does not speak of L3 domains; `veltair` gets them by domain.
How the paper is read stands in `bench.paper.readings`. `@domains` behind a policy's name hands out cores by domain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np

from bench.paper.readings import TEXT, Readings, machine_for, policy_name, versions_for
from bench.paths import SCENARIOS
from bench.policies.planned_share import Steps, choose_share
from veltair.scheduler.costs.level_grid import SOLO, level_grid
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.simulation.machine_model import modelled_profiles
from veltair.simulation.machine_model.calibration import calibrate
from veltair.simulation.machine_model.counter_fit import CounterFit, SlowdownSample
from veltair.simulation.machine_model.machine_model import load_machine_model
from veltair.simulation.oracle_bound import oracle_qps
from veltair.simulation.peak_search import RateTrial, try_scale
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
STACKS = ("prema", "planaria", "layerwise", "veltair-as", "veltair-ac", "veltair-full", "veltair")
SEEDS = (1, 2)
VARIANTS = ("planaria@keeps-late", "layerwise@sheds-late", "veltair-full@passing", "veltair-full@domains")
COMPARED = (*STACKS, *VARIANTS)
POOLED = ("planaria", "layerwise", "veltair-full", "veltair")
PLANNED = 0.8  # the share where none is searched
QUERIES = 800  # of one run and seed
SMALL = 500  # of one run of a table with many rows
PEAK_WIDTH = 0.02  # of the final bracket, relative to its lower end
STEP, GIVE_UP = 1.08, 0.2  # from one factor to the next before there is a bracket; the share of the first to go down to
RESNET_MS = 15.0


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest rate at which every tenant keeps its percentile, and the results at that rate."""

    workload: str
    policy: str
    percentile: float
    versions: int
    pooled: bool  # the percentile of all queries together, else of each tenant's
    planned_share: float
    trial_qps: Mapping[str, float]  # by planned share: the peak with the seeds that choose the share
    qps: float  # 0: none held
    conflict_rate: float
    core_ms_per_query: float
    mean_ms: Mapping[str, float]  # by tenant, of what was answered
    qos_rate: Mapping[str, float]


def peak(
    workload: str,
    policy: str,
    percentile: float = 0.95,
    versions: int = 5,
    readings: Mapping[str, str] | None = None,
    pooled: bool = False,
    small: bool = False,
) -> Peak:
    """`readings`: fields of `Readings` that differ from the paper's text. `pooled`: the percentile of all queries
    together, else of each tenant's. `small`: one seed of `SMALL` queries, for tables with many rows.
    """
    read = Readings(**(readings or {}))  # type: ignore[arg-type]
    name = policy_name(policy.removesuffix("@domains"), read)
    aware = policy == "veltair" or policy.endswith("@domains")
    base = workload_simulation(workload, percentile, versions_for(policy, read, versions), read)

    def search(share: float, seeds: Sequence[int], queries: int, steps: Steps) -> RateTrial | None:
        simulation = with_load(base, planned_share=share, domain_aware=aware, queries=queries)
        return search_peak(simulation, name, seeds, steps, pooled=pooled)

    share, near, trials = choose_share(policy, search)
    seeds, queries = (SEEDS[:1], SMALL) if small else (SEEDS, QUERIES)
    held = search(share, seeds, queries, bracket_scale(near or 1.0))
    common = (workload, policy, percentile, versions, pooled, share, trials)
    if held is None:
        return Peak(*common, 0.0, 0.0, 0.0, {}, {})
    return Peak(*common, held.qps, *_cost(held), _means(held), _rates(held))


def search_peak(
    simulation: Simulation, policy: str, seeds: Sequence[int], steps: Steps, *, pooled: bool = False
) -> RateTrial | None:
    """Returns the trial at the highest of the factors that `steps` has tried and that held; None where none did."""
    best, scale = None, next(steps)
    while True:
        tried = try_scale(simulation, policy, seeds, scale, give_up=True, pooled=pooled)
        if tried.held and (best is None or tried.scale > best.scale):
            best = tried
        try:
            scale = steps.send(tried.held)
        except StopIteration:
            return best


def bracket_scale(near: float) -> Steps:
    """Yields factors on the rates to try, and gets whether each held: by steps from `near`, then by bisection."""
    low, high, scale = 0.0, 0.0, near  # 0: not known yet
    while not (low and high) or high - low > PEAK_WIDTH * low:
        if (yield scale):
            low = scale
        else:
            high = scale
        scale = (low + high) / 2 if low and high else low * STEP if low else high / STEP
        if not low and high < near * GIVE_UP:
            return


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
    return _point(_resnet(queries, versions_for(policy, TEXT, 5)), policy, qps)


@cache
def _resnet(queries: int, versions: int) -> Simulation:
    tenant = TenantWorkload(name="resnet50", model="resnet50", qps=1.0, target_ms=RESNET_MS, arrivals="even")
    load = WorkloadShape(
        queries=queries,
        planned_share=PLANNED,
        layer_qos="ops",
        layers="products",
        domain_aware=False,
        grows_inside_layers=True,
    )
    return _build(SimulationScenario((tenant,), load), versions)


def loaded(workload: str, policy: str, scale: float) -> Point:
    """Runs a workload at `scale` times its scenario's rates."""
    simulation = workload_simulation(workload, 0.95, versions_for(policy, TEXT, 5))
    return _point(with_load(simulation, planned_share=PLANNED), policy, scale)


def solo_ms(workload: str) -> dict[str, float]:
    """Returns the shortest time of a query alone on the machine, over all core counts, by tenant."""
    simulation = workload_simulation(workload, 0.95, 5)
    found = {}
    for load in simulation.scenario.tenants:
        costs = costs_of(simulation, load.model)
        found[load.name] = costs.least_rest_ns[SOLO][0] / 1e6
    return found


def costs_of(simulation: Simulation, model: str) -> ProfileCosts:
    profile = simulation.profiles[model][0]
    return ProfileCosts(profile, level_grid([profile]), len(simulation.machine.cores), split_by_ops=True)


def resnet_simulation() -> Simulation:
    return _resnet(QUERIES, 5)


def version_counts(workload: str = "mix") -> dict[int, int]:
    """Returns how many layers of all models keep one, two, … code versions."""
    counts: dict[int, int] = {}
    for by_batch in workload_simulation(workload, 0.95, 5).profiles.values():
        for of_layer in by_batch[0].versions:
            counts[len(of_layer)] = counts.get(len(of_layer), 0) + 1
    return counts


def offered_qps(workload: str) -> float:
    """Returns the rate of a workload's scenario, all tenants together."""
    return workload_simulation(workload, 0.95, 5).scenario.qps


def oracle_bound(workload: str, percentile: float) -> float:
    """Returns a rate of all tenants together that no scheduler can exceed; see `oracle_qps`."""
    return oracle_qps(workload_simulation(workload, percentile, 5))


def proxy() -> tuple[list[SlowdownSample], CounterFit]:
    """Returns counter samples of the machine with random co-runners, and the linear model fitted to them."""
    simulation = workload_simulation("mix", 0.95, 5)
    profiles = {name: by_batch[0] for name, by_batch in simulation.profiles.items()}
    samples = calibrate(simulation.model, simulation.machine, profiles, simulation.execution_rates)
    return samples, simulation.counter_fit


@cache
def workload_simulation(
    workload: str,
    percentile: float,
    versions: int,
    readings: Readings = TEXT,
    machine: str = MACHINE,
    relaxed: float = 1.0,
) -> Simulation:
    """Returns a workload's scenario on the paper's machine, or on another one, with `relaxed` times its targets."""
    scenario = read_simulation_scenario(SCENARIOS / f"{workload}.toml")
    tenants = tuple(
        msgspec.structs.replace(tenant, percentile=percentile, target_ms=relaxed * tenant.target_ms)
        for tenant in scenario.tenants
    )
    load = msgspec.structs.replace(
        scenario.load,
        queries=QUERIES,
        domain_aware=False,
        layers=readings.layers,
        conflict_cost=readings.conflict_cost,
    )
    return _build(SimulationScenario(tenants, load), versions, readings, machine)


def with_load(simulation: Simulation, **changes: Any) -> Simulation:
    """The same simulation with another load; it shares all that is computed about the models."""
    other = copy(simulation)
    load = msgspec.structs.replace(simulation.scenario.load, **changes)
    other.scenario = msgspec.structs.replace(simulation.scenario, load=load)
    return other


def _build(
    scenario: SimulationScenario, versions: int, readings: Readings = TEXT, machine: str = MACHINE
) -> Simulation:
    model = machine_for(readings, load_machine_model(machine))
    known = modelled_profiles.scenario_models(scenario, model, versions=versions, levels_on=readings.levels_on)
    return Simulation(scenario, model, known)


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

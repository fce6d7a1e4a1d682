"""`simulate`: a scenario under one or more policies on a machine model, in virtual time."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

from rich.console import Console

from veltair.api.plotting import draw_bars
from veltair.errors import ConfigError
from veltair.loadgen.tenant_results import pool_outcomes
from veltair.scenarios import find_scenario
from veltair.scheduler.event_log.header import dump_header
from veltair.scheduler.policies.by_name import POLICIES
from veltair.simulation.machine_cluster import MachineCluster, check_cluster
from veltair.simulation.machine_model.machine_model import load_machine_model
from veltair.simulation.machine_model.modelled_profiles import scenario_models
from veltair.simulation.peak_search import WIDTH, RateTrial, find_peak, try_scale
from veltair.simulation.recorded_run import make_simulation_header
from veltair.simulation.report import PolicySummary, print_results, summarize
from veltair.simulation.routers import chosen_routers
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import SimulationScenario, read_simulation_scenario
from veltair.terminal import UNBOUNDED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_MACHINE = "threadripper-3990x"  # the paper's
DEFAULT_ROUTER = "deadlines"
Progress: TypeAlias = Callable[[str, float], None]  # what runs, and the share of all that is done


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The figures of each policy, of many machines those under each router. `print` shows them as tables.

    ::

        result = veltair.simulate("mix", ["veltair", "planaria"])
        result["veltair"].tenants[0].p99_ms
        result.plot("qos.png")
    """

    simulation: Simulation
    policies: tuple[PolicySummary, ...]
    machines: int = 1

    def __getitem__(self, policy: str) -> PolicySummary:
        """Return the figures of a policy, or of a policy and a router as in "veltair, deadlines"."""
        return next(each for each in self.policies if policy in (each.title, each.policy))

    def plot(self, path: str | Path | None = None) -> Figure:
        """The share of each tenant's queries that were in time, by policy. Needs matplotlib (`veltair[plot]`)."""
        names = [tenant.name for tenant in self.simulation.scenario.tenants]
        rates = {each.title: [(t.qos_rate or 0.0) * 100 for t in each.tenants] for each in self.policies}
        return draw_bars(rates, names, "queries within target, %", self.simulation.model.title, path)

    def print(self, console: Console) -> None:
        """Print the tables; only breached targets are red."""
        simulation = self.simulation
        cores = len(simulation.machine.cores)
        title = simulation.model.title if self.machines == 1 else f"{self.machines} x {simulation.model.title}"
        print_results(console, self.policies, simulation.scenario.tenants, title, cores)

    def __str__(self) -> str:
        console = Console(width=UNBOUNDED, color_system=None, file=io.StringIO())
        with console.capture() as captured:
            self.print(console)
        return captured.get()


def simulate(
    scenario: SimulationScenario | str | Path,
    policies: str | Sequence[str] = "veltair",
    *,
    machine: str = DEFAULT_MACHINE,
    cores: int | None = None,
    peak: bool = False,
    seeds: int = 3,
    machines: int | None = None,
    routers: str | Sequence[str] = DEFAULT_ROUTER,
    log: TextIO | None = None,
    progress: Progress = lambda what, share: None,
) -> SimulationResult:
    """Run the daemon's own scheduler on a machine that is not here.

    ::

        print(veltair.simulate("mix", ["veltair", "veltair-full"], cores=64, peak=True))

    Args:
        scenario: the tenants, their rates and targets: a file, or the name of one of `scenarios/`.
        machine: the name of a machine model, or its TOML file.
        cores: of the machine in use; all by default.
        peak: search the highest rate at which every tenant's QoS holds, instead of the scenario's rates.
        seeds: runs of each rate, pooled.
        machines: how many machines of this kind stand behind a router, each with the scenario's rates; None: one
            machine and no router.
        routers: which of the machines gets a query, by one rule or several.
        log: where every event and decision of a single run goes, to replay.

    Raises ConfigError.
    """
    names = chosen_policies([policies] if isinstance(policies, str) else policies)
    if seeds < 1:
        raise ConfigError(f"seeds: expected at least 1, got {seeds}")
    if not isinstance(scenario, SimulationScenario):
        scenario = read_simulation_scenario(find_scenario(scenario))
    if log is not None and (peak or len(names) > 1 or seeds > 1):
        raise ConfigError("log: expected a single run: one policy, one seed and no search of the peak")
    ways = chosen_routers([routers] if isinstance(routers, str) else routers)
    if machines is not None:
        check_cluster(scenario, machines)
        if peak or log is not None:
            raise ConfigError(f"machines: expected no {'search of the peak' if peak else 'log'} with many machines")
    elif scenario.failures or any(tenant.machines is not None for tenant in scenario.tenants):
        raise ConfigError("the scenario is one of many machines (failures, tenants.machines): expected how many")
    model = load_machine_model(machine)
    model.machine(cores)  # raises for an impossible count before the profiles are made
    simulation = Simulation(scenario, model, scenario_models(scenario, model, cores=cores), cores)
    chosen = range(scenario.load.seed, scenario.load.seed + seeds)
    found = []
    pairs = [(name, way) for name in names for way in (ways if machines is not None else [None])]
    for number, (name, way) in enumerate(pairs):

        def report(what: str, share: float, done: int = number) -> None:
            progress(what, (done + share) / len(pairs))

        if machines is not None and way is not None:
            found.append(_run_cluster(simulation, name, way, machines, chosen, report))
        elif peak:
            found.append(_find_peak(simulation, name, chosen, report))
        else:
            found.append(_run(simulation, name, chosen, log, report))
    return SimulationResult(simulation, tuple(found), machines or 1)


def chosen_policies(names: Sequence[str]) -> list[str]:
    """The names, each once. Raises ConfigError for one that is no policy's."""
    for name in names:
        if name not in POLICIES:
            raise ConfigError(f"unknown policy {name!r}: expected one of {', '.join(POLICIES)}")
    return list(dict.fromkeys(names))


def _run(simulation: Simulation, policy: str, seeds: range, log: TextIO | None, progress: Progress) -> PolicySummary:
    if log is not None:
        log.write(dump_header(make_simulation_header(simulation, policy)) + "\n")
    tried = try_scale(simulation, policy, seeds, log=log, report=lambda share: progress(policy, share))
    return summarize(policy, tried, None)


def _run_cluster(
    simulation: Simulation, policy: str, router: str, machines: int, seeds: range, progress: Progress
) -> PolicySummary:
    runs = []
    for done, seed in enumerate(seeds):
        cluster = MachineCluster(simulation, policy, router, machines, seed)

        def report(share: float, done: int = done) -> None:
            progress(f"{policy}, {router}", (done + share) / len(seeds))

        runs.append(cluster.run(report))
    outcomes = pool_outcomes([run.outcomes for run in runs])
    held = all(outcome.qos_held for outcome in outcomes)
    tried = RateTrial(float(machines), simulation.scenario.qps * machines, runs, outcomes, held)
    return summarize(policy, tried, None, router)


def _find_peak(simulation: Simulation, policy: str, seeds: range, progress: Progress) -> PolicySummary:
    probes: list[RateTrial] = []
    left = _trials_left(probes)

    def report(scale: float, share: float) -> None:
        progress(f"{policy}, rates x {scale:.3g}", (len(probes) + share) / (len(probes) + left))

    for tried in find_peak(simulation, policy, seeds, report):
        probes.append(tried)
        left = max(1, _trials_left(probes))
    held = [tried for tried in probes if tried.held]
    best = max(held, key=lambda tried: tried.scale) if held else min(probes, key=lambda tried: tried.scale)
    return summarize(policy, best, best.qps if held else 0.0)


def _trials_left(probes: Sequence[RateTrial]) -> int:
    """Estimates how many more trials a peak search needs."""
    low = max((tried.scale for tried in probes if tried.held), default=0.0)
    high = min((tried.scale for tried in probes if not tried.held), default=0.0)
    if not low or not high:
        return 1 + ceil(log2(1 / WIDTH))
    return max(0, ceil(log2((high - low) / (WIDTH * low))))

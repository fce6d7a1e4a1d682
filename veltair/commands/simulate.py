"""`veltair simulate`: runs a scenario under one or more policies on a machine model, in virtual time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from math import ceil, isfinite, log2
from pathlib import Path
from typing import TextIO

import msgspec
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn

from veltair.errors import ConfigError
from veltair.scheduler.event_log.header import dump_header
from veltair.scheduler.policies.by_name import POLICIES
from veltair.simulate.machine_model.machine_model import load_machine_model, machine_names
from veltair.simulate.machine_model.modelled_profiles import scenario_models
from veltair.simulate.peak_search import WIDTH, RateTrial, find_peak, try_scale
from veltair.simulate.recorded_run import make_simulation_header
from veltair.simulate.report import PolicySummary, print_results, summarize
from veltair.simulate.simulation import Simulation
from veltair.simulate.simulation_scenario import MOST_QUERIES, SimulationScenario, read_simulation_scenario

DEFAULT_MACHINE = "threadripper-3990x"  # the paper's


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.toml", help="the tenants, their rates and targets")
    parser.add_argument("--policy", default="veltair", metavar="A,B,…", help=f"of {', '.join(POLICIES)}")
    parser.add_argument(
        "--machine", default=DEFAULT_MACHINE, metavar="M", help=f"{', '.join(machine_names())}, or a machine's TOML"
    )
    parser.add_argument("--cores", type=int, metavar="N", help="of the machine in use (default: all)")
    parser.add_argument(
        "--find-peak", action="store_true", help="search the highest rate at which every tenant's QoS holds"
    )
    parser.add_argument("--percentile", type=float, metavar="P", help="of every tenant, such as 0.99")
    parser.add_argument("--seed", type=int, metavar="S", help="of the first run (default: the scenario's)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each rate, pooled (default: 3)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--queries", type=int, metavar="N", help="of one run, all tenants together")
    length.add_argument("--duration", type=float, metavar="S", help="of one run, in simulated seconds")
    parser.add_argument("--log", type=Path, metavar="FILE", help="every event and decision of a single run, to replay")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Simulates and prints; returns 0 whatever the figures. Raises UserError for a bad input."""
    policies = _policies(args.policy)
    scenario = _overridden(read_simulation_scenario(args.scenario), args)
    model = load_machine_model(args.machine)
    model.machine(args.cores)  # raises for an impossible count before the profiles are made
    seeds = range(scenario.load.seed, scenario.load.seed + args.seeds)
    if args.log is not None and (args.find_peak or len(policies) > 1 or len(seeds) > 1):
        raise ConfigError("--log: expected a single run: one policy, --seeds 1 and no --find-peak")
    simulation = Simulation(scenario, model, scenario_models(scenario, model, cores=args.cores), args.cores)
    notes = Console(stderr=True, markup=False, highlight=False)
    with ExitStack() as stack:
        log = None if args.log is None else stack.enter_context(_open_log(args.log))
        columns = *Progress.get_default_columns()[:-1], TimeRemainingColumn()
        bar = Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal)
        results = _Session(simulation, policies, seeds, stack.enter_context(bar)).run(args.find_peak, log)
    if args.json:
        print(json.dumps({"results": msgspec.to_builtins(results), "environment": _environment(simulation, seeds)}))
    else:
        print_results(Console(), results, scenario.tenants, model.title, len(simulation.machine.cores))
    return 0


class _Session:
    """One invocation of the command with its progress bar."""

    def __init__(self, simulation: Simulation, policies: Sequence[str], seeds: range, bar: Progress) -> None:
        self._simulation, self._policies, self._seeds, self._bar = simulation, policies, seeds, bar
        self._task = bar.add_task("", total=float(len(policies)))

    def run(self, peak: bool, log: TextIO | None) -> list[PolicySummary]:
        return [
            self._peak(i, policy) if peak else self._once(i, policy, log) for i, policy in enumerate(self._policies)
        ]

    def _once(self, number: int, policy: str, log: TextIO | None) -> PolicySummary:
        def report(share: float) -> None:
            self._bar.update(self._task, completed=number + share, description=policy)

        if log is not None:
            log.write(dump_header(make_simulation_header(self._simulation, policy)) + "\n")
        return summarize(policy, try_scale(self._simulation, policy, self._seeds, log=log, report=report), None)

    def _peak(self, number: int, policy: str) -> PolicySummary:
        probes: list[RateTrial] = []
        left = _trials_left(probes)

        def report(scale: float, share: float) -> None:
            done = (len(probes) + share) / (len(probes) + left)
            self._bar.update(self._task, completed=number + done, description=f"{policy}, rates x {scale:.3g}")

        for tried in find_peak(self._simulation, policy, self._seeds, report):
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


def _policies(text: str) -> list[str]:
    policies = text.split(",")
    for name in policies:
        if name not in POLICIES:
            raise ConfigError(f"--policy: unknown policy {name!r}: expected one of {', '.join(POLICIES)}")
    return list(dict.fromkeys(policies))


def _overridden(scenario: SimulationScenario, args: argparse.Namespace) -> SimulationScenario:
    """The scenario with the values of the command line."""
    load, tenants = scenario.load, scenario.tenants
    if args.seeds < 1:
        raise ConfigError(f"--seeds: expected at least 1, got {args.seeds}")
    if args.seed is not None:
        if not 0 <= args.seed < 2**32:
            raise ConfigError(f"--seed: expected 0 to 2**32 - 1, got {args.seed}")
        load = msgspec.structs.replace(load, seed=args.seed)
    if args.queries is not None:
        if not 1 <= args.queries <= MOST_QUERIES:
            raise ConfigError(f"--queries: expected 1 to {MOST_QUERIES}, got {args.queries}")
        load = msgspec.structs.replace(load, queries=args.queries, duration_s=None)
    if args.duration is not None:
        if not isfinite(args.duration) or args.duration <= 0:
            raise ConfigError(f"--duration: expected seconds above 0, got {args.duration}")
        load = msgspec.structs.replace(load, queries=None, duration_s=args.duration)
    if args.percentile is not None:
        if not 0 < args.percentile <= 1:
            raise ConfigError(f"--percentile: expected above 0 and at most 1, got {args.percentile}")
        tenants = tuple(msgspec.structs.replace(tenant, percentile=args.percentile) for tenant in tenants)
    return SimulationScenario(tenants, load)


def _open_log(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--log {path}: {error.strerror}") from None


def _environment(simulation: Simulation, seeds: range) -> dict[str, object]:
    """What the figures hold for; they do not depend on the machine that ran the simulation."""
    load, model = simulation.scenario.load, simulation.model
    return {
        "simulated": True,
        "machine": model.name,
        "cpu": model.title,
        "cores": len(simulation.machine.cores),
        "l3_domains": len(simulation.machine.domains),
        "proxy": load.proxy,
        "workers": simulation.workers,
        "seeds": list(seeds),
        "queries": load.queries,
        "duration_s": load.duration_s,
    }

"""`veltair simulate`: runs a scenario under one or more policies on a machine model, in virtual time."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from typing import TextIO

import msgspec
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn

from veltair.api.simulations import DEFAULT_MACHINE, DEFAULT_ROUTER, chosen_policies, simulate
from veltair.errors import ConfigError
from veltair.scenarios import find_scenario
from veltair.scheduler.policies.by_name import POLICIES
from veltair.simulation.machine_cluster import check_cluster
from veltair.simulation.machine_model.machine_model import machine_names
from veltair.simulation.routers import ROUTERS, chosen_routers
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import MOST_QUERIES, SimulationScenario, read_simulation_scenario
from veltair.terminal import ProgressLines, result_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "the tenants, their rates and targets: a file, or mix, light, medium, heavy"
    parser.add_argument("scenario", metavar="SCENARIO", help=what)
    parser.add_argument("--policy", default="veltair", metavar="A,B,…", help=f"of {', '.join(POLICIES)}")
    parser.add_argument(
        "--machine", default=DEFAULT_MACHINE, metavar="M", help=f"{', '.join(machine_names())}, or a machine's TOML"
    )
    parser.add_argument("--cores", type=int, metavar="N", help="of the machine in use (default: all)")
    parser.add_argument(
        "--machines", type=int, metavar="N", help="behind a router, each with the scenario's rates (default: no router)"
    )
    parser.add_argument("--router", metavar="A,B,…", help=f"of {', '.join(ROUTERS)} (default: {DEFAULT_ROUTER})")
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
    parser.epilog = """\
examples:
  veltair simulate mix
  veltair simulate scenario.toml --policy veltair,edf --cores 64 --json
  veltair simulate mix --machines 10 --router random,two-choices,deadlines"""


def run(args: argparse.Namespace) -> int:
    """Simulates and prints; returns 0 whatever the figures. Raises UserError for a bad input."""
    try:
        policies = chosen_policies(args.policy.split(","))
    except ConfigError as error:
        raise ConfigError(f"--policy: {error}") from None
    scenario = _overridden(read_simulation_scenario(find_scenario(args.scenario)), args)
    routers = _chosen_routers(args, scenario)
    if args.log is not None and (args.find_peak or len(policies) > 1 or args.seeds > 1):
        raise ConfigError("--log: expected a single run: one policy, --seeds 1 and no --find-peak")
    notes = Console(stderr=True, markup=False, highlight=False)
    columns = *Progress.get_default_columns()[:-1], TimeRemainingColumn()
    bar = Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal)
    with ExitStack() as stack:
        log = None if args.log is None else stack.enter_context(_open_log(args.log))
        task = stack.enter_context(bar).add_task("", total=1.0)
        lines = ProgressLines()

        def progress(what: str, share: float) -> None:
            if notes.is_terminal:
                bar.update(task, completed=share, description=what)
            elif not args.json:
                lines(what, round(share * 100), 100)

        result = simulate(
            scenario,
            policies,
            machine=args.machine,
            cores=args.cores,
            peak=args.find_peak,
            seeds=args.seeds,
            machines=args.machines,
            routers=routers,
            log=log,
            progress=progress,
        )
    if args.json:
        seeds = range(scenario.load.seed, scenario.load.seed + args.seeds)
        environment = _environment(result.simulation, seeds)
        if args.machines is not None:
            environment |= {
                "machines": args.machines,
                "routing": msgspec.to_builtins(scenario.routing),
                "failures": msgspec.to_builtins(scenario.failures),
            }
        print(json.dumps({"results": msgspec.to_builtins(result.policies), "environment": environment}))
    else:
        result.print(result_console())
    return 0


def _chosen_routers(args: argparse.Namespace, scenario: SimulationScenario) -> list[str]:
    """The routers of the command line. Raises ConfigError, which names the option that does not fit."""
    if args.machines is None:
        if args.router is not None:
            raise ConfigError("--router: expected --machines N with it")
        if scenario.failures or any(tenant.machines is not None for tenant in scenario.tenants):
            raise ConfigError(f"{args.scenario}: a scenario of many machines: expected --machines N")
        return [DEFAULT_ROUTER]
    if args.find_peak or args.log is not None:
        raise ConfigError("--machines: not with --find-peak or --log")
    try:
        check_cluster(scenario, args.machines)
    except ConfigError as error:
        raise ConfigError(f"--machines {args.machines}: {error}") from None
    try:
        return chosen_routers((args.router or DEFAULT_ROUTER).split(","))
    except ConfigError as error:
        raise ConfigError(f"--router: {error}") from None


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
    return msgspec.structs.replace(scenario, tenants=tenants, load=load)


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

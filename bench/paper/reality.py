"""Compares the daemon with the simulator and this machine's model on the same scenario.

    python -m bench.paper.reality [--policies fcfs,veltair] [--machine xeon-2] [--rounds 3] [--results DIR] [--again]

For each policy: the greatest load at which every tenant keeps 95 % in target, and each tenant's p95 at three quarters
of the daemon's peak. The simulator knows the artifacts' measured profiles (`veltair profile --within-model`) and the
machine's model, nothing else; queries arrive at the same moments. Policies take turns, and the daemon's figures are
medians over the rounds. Results in the file are simulated again but not measured again, unless with `--again`. A
measurement is repeated when other programs used the machine meanwhile, when the machine was slower than the profile
(`bench.serving.profile_drift`), or when it was slow for seconds (`bench.serving.steadiness`); where that does not help,
the file says how steady the machine was. The networks are in fp32, so that the load generator and the front end, which
share the cores, take a small part. Writes `reality.json` in the folder of the machine's results and the machine's table
in `docs/results.md`.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from bench.paths import CLI, RESULTS, ROOT, SCENARIOS
from bench.serving import mix
from bench.serving.steadiness import watch_for_slow_seconds
from veltair.config import ServerConfig
from veltair.loadgen.scenario import read_scenario
from veltair.machine.environment import describe_environment
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.runtime.whole_model_timing import IN_MODEL
from veltair.server.engine.machine_limits import default_workers
from veltair.simulation.machine_model import modelled_profiles
from veltair.simulation.machine_model.machine_model import load_machine_model
from veltair.simulation.peak_search import find_peak, try_scale
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import SimulationScenario, TenantWorkload, WorkloadShape

SCENARIO = SCENARIOS / "reality.toml"
PAGE = ROOT / "docs" / "results.md"
MACHINE = "xeon-2"
SEEDS = (1, 2)
SHARE = 0.75  # of the daemon's peak, for the latencies
LONG_S = 30.0  # of load for them
ALLOWED = 0.20
IDLE, TRIES = 0.1, 4  # of a core: the share that the system itself takes
MOST_DRIFT = 1.1  # times the profile
SLOW_SHARE = 0.02  # of the seconds, at most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="fcfs,block-6,veltair-full,veltair")
    parser.add_argument(
        "--machine", default=MACHINE, help="of the simulator: a name, or a file of bench.paper.machine_model"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of this machine's results")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    result = args.results / "reality.json"
    policies = args.policies.split(",")
    config = mix.prepare(mix.read_document(SCENARIO), SCENARIO.stem, "fp32")
    profile_models(args.again)
    found: dict[str, Any] = {"environment": asdict(describe_environment()), "machine": args.machine, "policies": {}}
    if result.exists() and not args.again:
        found = json.loads(result.read_text("utf-8"))
    for key, measure in (("peaks", peak_qps), ("latencies", p95_ms)):
        for number in range(1, args.rounds + 1):
            for policy in policies:
                seen = found["policies"].setdefault(policy, {"peaks": [], "latencies": []})
                if len(seen[key]) < number:
                    print(f"== round {number}, {key}: {policy}", flush=True)
                    seen[key].append(measure(policy, seen, config))
                    result.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    for policy in policies:
        compare(policy, args.machine, found["policies"][policy])
    result.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(rows := table(found))
    text = PAGE.read_text("utf-8")
    place = rf"(?s)(<!-- reality {re.escape(found['machine'])} -->\n).*?(<!-- end -->)"
    PAGE.write_text(re.sub(place, lambda marks: f"{marks[1]}{rows}\n{marks[2]}", text), "utf-8")
    return 0


def measure_steadily(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Repeats a measurement until the machine was steady and idle except for it, a few times at most.

    Returns that measurement, else the one with the fewest slow seconds; its key "steady" says how steady it was.
    Raises SystemExit where other programs ran during every try.
    """
    tried: list[dict[str, Any]] = []
    before = profile_drift()
    for _ in range(TRIES):
        begin_s, before_s = time.monotonic(), _others_s()
        with watch_for_slow_seconds() as slow:
            found = measure()
        others = (_others_s() - before_s) / (time.monotonic() - begin_s)
        after = profile_drift()
        seen = {"pace": max(before, after), "slow": sum(slow) / max(1, len(slow))}
        found["steady"], before = seen, after
        if others > IDLE:
            print(f"other programs took {others:.0%} of a core meanwhile: again", flush=True)
            continue
        if is_steady(seen):
            return found
        tried.append(found)
        took = f"the machine takes {seen['pace']:.2f} times what the profile says"
        print(f"{took}, and was slow {seen['slow']:.1%} of the time: again", flush=True)
    if not tried:
        raise SystemExit("the machine is not idle")
    return min(tried, key=lambda found: found["steady"]["slow"])


def is_steady(seen: dict[str, float]) -> bool:
    return seen["pace"] <= MOST_DRIFT and seen["slow"] <= SLOW_SHARE


def profile_drift() -> float:
    """Returns how much slower the machine is than the profile of the scenario's first model."""
    first = artifact(read_scenario(SCENARIO).tenants[0].name)
    command = [sys.executable, "-m", "bench.serving.profile_drift", first]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def artifact(name: str) -> str:
    """The path of a tenant's artifact."""
    return str(mix.FOLDER / "fp32" / name)


def _others_s() -> float:
    """Returns the CPU time so far of processes that this one did not start, or has not waited for yet."""
    cpu, own = psutil.cpu_times(), psutil.Process().cpu_times()
    busy_s = cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq + cpu.steal  # not idle, not waiting for a disk
    return busy_s - (own.user + own.system + own.children_user + own.children_system)


def profile_models(again: bool) -> None:
    """Profiles freshly compiled models, or all of them `again`: the machine's speed differs from hour to hour."""
    paths = [artifact(tenant.name) for tenant in read_scenario(SCENARIO).tenants]
    due = [path for path in paths if again or load_artifact(Path(path)).manifest.environment.get("times") != IN_MODEL]
    if due:
        subprocess.run([*CLI, "profile", "--yes", "--within-model", *due], check=True)


def peak_qps(policy: str, seen: dict[str, Any], config: Path) -> float:
    """Measures the daemon's peak."""
    found = measure_steadily(lambda: mix.find_peak([policy], mix.read_document(SCENARIO), config, len(SEEDS)))
    seen.setdefault("steady", []).append(found["steady"])
    return found["peak_qps"] or 0.0


def p95_ms(policy: str, seen: dict[str, Any], config: Path) -> dict[str, float]:
    """Measures the daemon's p95 by tenant, at a share of the median of its peaks."""
    scenario = _scaled(mix.read_document(SCENARIO), _scale(median(seen["peaks"])))
    found = measure_steadily(lambda: mix.drive([policy], scenario, config))
    seen.setdefault("steady", []).append(found["steady"])
    return {tenant["name"]: tenant["p95_ms"] for tenant in found["tenants"]}


def compare(policy: str, machine: str, seen: dict[str, Any]) -> None:
    """Adds the simulator's figures beside the daemon's medians."""
    load = read_scenario(SCENARIO).load
    reached = median(seen["peaks"])
    held = [tried for tried in find_peak(simulation_of(machine, load.duration_s), policy, SEEDS) if tried.held]
    seen["peak_qps"] = {"daemon": reached, "simulator": max((tried.qps for tried in held), default=0.0)}
    tried = try_scale(simulation_of(machine, LONG_S), policy, (load.seed,), _scale(reached))
    seen["p95_ms"] = {
        outcome.name: {
            "daemon": median(latencies[outcome.name] for latencies in seen["latencies"]),
            "simulator": float(np.percentile(outcome.latency_ns, 95)) / 1e6,
        }
        for outcome in tried.outcomes
    }


def simulation_of(machine: str, duration_s: float) -> Simulation:
    """Returns the simulation of the scenario that the daemon gets."""
    real = read_scenario(SCENARIO)
    tenants = tuple(
        TenantWorkload(name=tenant.name, model=artifact(tenant.name), qps=tenant.qps, target_ms=tenant.target_ms)
        for tenant in real.tenants
    )
    model = load_machine_model(machine)
    workers = default_workers(model.cores, [load_artifact(Path(tenant.model)) for tenant in tenants])
    total_s = duration_s + real.load.warmup_s
    own = WorkloadShape(
        duration_s=total_s,
        warmup=real.load.warmup_s / total_s,
        workers=workers,
        planned_share=ServerConfig().planned_share,
    )
    scenario = SimulationScenario(tenants, own)
    return Simulation(scenario, model, modelled_profiles.scenario_models(scenario, model))


def _scale(peak_qps: float) -> float:
    return SHARE * peak_qps / sum(tenant.qps for tenant in read_scenario(SCENARIO).tenants)


def _scaled(scenario: mix.Scenario, scale: float) -> mix.Scenario:
    """The scenario with all rates times `scale`, and a longer run."""
    changed = copy.deepcopy(scenario)
    changed["load"]["duration_s"] = LONG_S
    for tenant in changed["tenants"]:
        tenant["qps"] = float(tenant["qps"]) * scale
    return changed


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    lines = ["| policy | | daemon | simulator | ratio (bar: within 20 %) |", "| --- | --- | --- | --- | --- |"]
    for policy, seen in found["policies"].items():
        steady = [is_steady(each) for each in seen.get("steady", [])]
        if not all(steady):
            lines.append(
                f"| {policy} | measured while the machine was not steady | {steady.count(False)} of {len(steady)} | | |"
            )
        rows = {"QPS at 95 % QoS": seen["peak_qps"]}
        rows |= {f"p95 ms of {name} at {SHARE:.0%} of it": pair for name, pair in seen["p95_ms"].items()}
        for what, pair in rows.items():
            ratio = pair["simulator"] / pair["daemon"]
            mark = "" if abs(ratio - 1) <= ALLOWED else " (beyond)"
            lines.append(f"| {policy} | {what} | {pair['daemon']:.1f} | {pair['simulator']:.1f} | {ratio:.2f}{mark} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())

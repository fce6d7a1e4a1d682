"""The same scenario on the daemon and in the simulator with this machine's model: how far apart are they?

    python bench/reality.py [--policies fcfs,veltair] [--machine xeon-2] [--rounds 3] [--results DIR] [--again]

For each policy: the greatest load at which every tenant keeps 95 % in target, and each tenant's p95 at three quarters
of what the daemon reached. The simulator knows the artifacts' measured profiles (`veltair profile --within-model`) and
the machine's model, nothing else; queries arrive at the same moments. Policies take turns, and the daemon's figures are
medians over the rounds. What stands in the file is not measured again without `--again`, but simulated. A measurement
during which other programs took part of the machine, or the machine was slower than the profile (`bench/pace.py`) or
slow for seconds (`bench/steady.py`), is made again; where that does not help, what was seen stands beside it.
Networks in fp32, so that the load generator and the front end, which share the cores, take a small part. Writes
`reality.json` in the folder of the machine's results and the machine's table in `docs/results.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import mix
import numpy as np
from steady import watching

from veltair.config import ServerConfig
from veltair.loadgen.scenario import read_scenario
from veltair.machine.environment import describe_environment
from veltair.profiles.artifact.manifest import load
from veltair.profiles.runtime.whole_model_timing import IN_MODEL
from veltair.server.engine.tenancy import default_workers
from veltair.simulate.machine_model import machines, modelled_profiles
from veltair.simulate.peak_search import find_peak, probe
from veltair.simulate.scenario import Load, Scenario, TenantLoad
from veltair.simulate.simulation import Simulation

SCENARIO = mix.ROOT / "scenarios" / "reality.toml"
PAGE = mix.ROOT / "docs" / "results.md"
MACHINE = "xeon-2"
SEEDS = (1, 2)
SHARE = 0.75  # of the daemon's peak, for the latencies
LONG_S = 30.0  # of load for them
ALLOWED = 0.20
ALONE, TRIES = 0.1, 4  # of a core: what the system itself takes
STEADY = 1.1  # times the profile, at most
SLOW_SHARE = 0.02  # of the seconds, at most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="fcfs,block-6,veltair-full,veltair")
    parser.add_argument("--machine", default=MACHINE, help="of the simulator: a name, or a file by bench/machine.py")
    parser.add_argument("--results", type=Path, default=mix.RESULTS, help="folder of this machine's results")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    result = args.results / "reality.json"
    policies = args.policies.split(",")
    config = mix.prepare(SCENARIO, "fp32")
    time_whole(args.again)
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


def alone(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it returns when the machine was steady and no other program took part of it meanwhile, in one of a few
    tries; else the one with the fewest slow seconds. How steady it was stands in it."""
    tried: list[dict[str, Any]] = []
    before = pace()
    for _ in range(TRIES):
        begin_s, before_s = time.monotonic(), _others_s()
        with watching() as slow:
            found = measure()
        others = (_others_s() - before_s) / (time.monotonic() - begin_s)
        after = pace()
        seen = {"pace": max(before, after), "slow": sum(slow) / max(1, len(slow))}
        found["steady"], before = seen, after
        if others > ALONE:
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
    return seen["pace"] <= STEADY and seen["slow"] <= SLOW_SHARE


def pace() -> float:
    """Of the scenario's first model."""
    command = [sys.executable, str(mix.ROOT / "bench" / "pace.py"), artifact(read_scenario(SCENARIO).tenants[0].name)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def artifact(name: str) -> str:
    """The path of a tenant's artifact."""
    return str(mix.FOLDER / "fp32" / name)


def _others_s() -> float:
    """CPU time so far of what this process did not start, or still waits for."""
    busy = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    total_s = (sum(busy[:3]) + sum(busy[5:8])) / os.sysconf("SC_CLK_TCK")  # not idle, not waiting for a disk
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return total_s - sum(usage.ru_utime + usage.ru_stime for usage in own)


def time_whole(again: bool) -> None:
    """Of models that are freshly compiled, or of all: the machine's speed differs from hour to hour."""
    paths = [artifact(tenant.name) for tenant in read_scenario(SCENARIO).tenants]
    due = [path for path in paths if again or load(Path(path)).manifest.environment.get("times") != IN_MODEL]
    if due:
        subprocess.run([*mix.CLI, "profile", "--within-model", *due], check=True)


def peak_qps(policy: str, seen: dict[str, Any], config: Path) -> float:
    """What the daemon reaches."""
    found = alone(lambda: mix.peak([policy], SCENARIO.read_text("utf-8"), config, len(SEEDS)))
    seen.setdefault("steady", []).append(found["steady"])
    return found["peak_qps"] or 0.0


def p95_ms(policy: str, seen: dict[str, Any], config: Path) -> dict[str, float]:
    """The daemon's, by tenant, at a share of the median of the peaks seen."""
    text = _scaled(SCENARIO.read_text("utf-8"), _scale(median(seen["peaks"])))
    found = alone(lambda: mix.drive([policy], text, config))
    seen.setdefault("steady", []).append(found["steady"])
    return {tenant["name"]: tenant["p95_ms"] for tenant in found["tenants"]}


def compare(policy: str, machine: str, seen: dict[str, Any]) -> None:
    """Puts the simulator's figures beside the daemon's medians."""
    load = read_scenario(SCENARIO).load
    reached = median(seen["peaks"])
    held = [tried for tried in find_peak(twin(machine, load.duration_s), policy, SEEDS) if tried.held]
    seen["peak_qps"] = {"daemon": reached, "simulator": max((tried.qps for tried in held), default=0.0)}
    tried = probe(twin(machine, LONG_S), policy, (load.seed,), _scale(reached))
    seen["p95_ms"] = {
        tally.name: {
            "daemon": median(latencies[tally.name] for latencies in seen["latencies"]),
            "simulator": float(np.percentile(tally.latency_ns, 95)) / 1e6,
        }
        for tally in tried.tallies
    }


def twin(machine: str, duration_s: float) -> Simulation:
    """The scenario that the daemon gets, for the simulator."""
    real = read_scenario(SCENARIO)
    tenants = tuple(
        TenantLoad(name=tenant.name, model=artifact(tenant.name), qps=tenant.qps, target_ms=tenant.target_ms)
        for tenant in real.tenants
    )
    model = machines.load(machine)
    workers = default_workers(model.cores, [load(Path(tenant.model)) for tenant in tenants])
    total_s = duration_s + real.load.warmup_s
    own = Load(
        duration_s=total_s, warmup=real.load.warmup_s / total_s, workers=workers,
        planned_share=ServerConfig().planned_share,
    )  # fmt: skip
    scenario = Scenario(tenants, own)
    return Simulation(scenario, model, modelled_profiles.subjects(scenario, model))


def _scale(peak_qps: float) -> float:
    return SHARE * peak_qps / sum(tenant.qps for tenant in read_scenario(SCENARIO).tenants)


def _scaled(text: str, scale: float) -> str:
    """The scenario with all rates times `scale`, and a longer run."""
    text = re.sub(r"(?m)^duration_s = .*", f"duration_s = {LONG_S}", text)
    return re.sub(r"(?m)^qps = (.*)", lambda found: f"qps = {float(found[1]) * scale}", text)


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

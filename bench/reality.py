"""The same scenario on the daemon and in the simulator with this machine's model: how far apart are they?

    python bench/reality.py [--policies fcfs,veltair-full,veltair] [--again]

For each policy: the greatest load at which every tenant keeps 95 % in target, and each tenant's p95 at three quarters
of what the daemon reached. The simulator knows the artifacts' measured profiles (`veltair profile --within-model`) and
the machine's model, nothing else.
Networks in fp32, so that the load generator and the front end, which share the cores, take a small part. Writes
`bench/results/reality.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mix
import numpy as np

from veltair.loadgen.scenario import read_scenario
from veltair.machine import environment
from veltair.profiles.artifact import load
from veltair.profiles.within import IN_MODEL
from veltair.server.tenancy import default_workers
from veltair.simulate import machines, profiles
from veltair.simulate.peak import find_peak, probe
from veltair.simulate.run import Simulation
from veltair.simulate.scenario import Load, Scenario, TenantLoad

SCENARIO = mix.ROOT / "scenarios" / "reality.toml"
RESULT = mix.RESULTS / "reality.json"
MACHINE = "xeon-2"
SEEDS = (1, 2)
SHARE = 0.75  # of the daemon's peak, for the latencies
ALLOWED = 0.20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="fcfs,block-6,veltair-full,veltair")
    parser.add_argument("--machine", default=MACHINE, help="of the simulator: a name, or a file by bench/machine.py")
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    config = mix.prepare(SCENARIO, "fp32")
    time_whole()
    simulation = twin(args.machine)
    found: dict[str, Any] = {"environment": asdict(environment()), "machine": args.machine, "policies": {}}
    if RESULT.exists() and not args.again:
        found = json.loads(RESULT.read_text("utf-8"))
    for policy in args.policies.split(","):
        if policy not in found["policies"]:
            print(f"== {policy}", flush=True)
            found["policies"][policy] = compare(policy, config, simulation)
            RESULT.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(table(found))
    return 0


def time_whole() -> None:
    """Of models that are freshly compiled."""
    paths = [mix.FOLDER / "fp32" / tenant.name for tenant in read_scenario(SCENARIO).tenants]
    fresh = [str(path) for path in paths if load(path).manifest.environment.get("times") != IN_MODEL]
    if fresh:
        subprocess.run([*mix.CLI, "profile", "--within-model", *fresh], check=True)


def twin(machine: str) -> Simulation:
    """The scenario that the daemon gets, for the simulator."""
    real = read_scenario(SCENARIO)
    tenants = tuple(
        TenantLoad(
            name=tenant.name, model=str(mix.FOLDER / "fp32" / tenant.name), qps=tenant.qps, target_ms=tenant.target_ms
        )
        for tenant in real.tenants
    )
    model = machines.load(machine)
    workers = default_workers(model.cores, [load(Path(tenant.model)) for tenant in tenants])
    scenario = Scenario(tenants, Load(duration_s=real.load.duration_s, workers=workers))
    return Simulation(scenario, model, profiles.subjects(scenario, model))


def compare(policy: str, config: Path, simulation: Simulation) -> dict[str, Any]:
    text = SCENARIO.read_text("utf-8")
    real = mix.peak([policy], text, config, len(SEEDS))
    held = [tried for tried in find_peak(simulation, policy, SEEDS) if tried.held]
    simulated = max((tried.qps for tried in held), default=0.0)
    total = sum(tenant.qps for tenant in simulation.scenario.tenants)
    scale = SHARE * (real["peak_qps"] or 0.0) / total
    at_share = mix.drive([policy], _scaled(text, scale), config)
    p95_ms = {
        tally.name: float(np.percentile(tally.latency_ns, 95)) / 1e6
        for tally in probe(simulation, policy, SEEDS, scale).tallies
    }
    return {
        "peak_qps": {"daemon": real["peak_qps"], "simulator": simulated},
        "p95_ms": {
            tenant["name"]: {"daemon": tenant["p95_ms"], "simulator": p95_ms[tenant["name"]]}
            for tenant in at_share["tenants"]
        },
    }


def _scaled(text: str, scale: float) -> str:
    """The scenario with all rates times `scale`, and a longer run."""
    text = re.sub(r"(?m)^duration_s = .*", "duration_s = 30.0", text)
    return re.sub(r"(?m)^qps = (.*)", lambda found: f"qps = {float(found[1]) * scale}", text)


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    lines = ["| policy | | daemon | simulator | ratio (bar: within 20 %) |", "| --- | --- | --- | --- | --- |"]
    for policy, seen in found["policies"].items():
        rows = {"QPS at 95 % QoS": seen["peak_qps"]}
        rows |= {f"p95 ms of {name} at {SHARE:.0%} of it": pair for name, pair in seen["p95_ms"].items()}
        for what, pair in rows.items():
            ratio = pair["simulator"] / pair["daemon"]
            mark = "" if abs(ratio - 1) <= ALLOWED else " (beyond)"
            lines.append(f"| {policy} | {what} | {pair['daemon']:.1f} | {pair['simulator']:.1f} | {ratio:.2f}{mark} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())

"""How fast the simulator is: queries of the mix on the paper's 64 cores per second of wall time, by policy.

    python -m bench.paper.simulator_speed [--queries 6000] [--policies A,B] [--out bench/results/simulator.json]

The time includes the scheduler, drawing the arrivals and building the scheduler, but not making the models' profiles. A
run is timed twice: the first fills the tables that follow from the models, the second finds them filled. There are two
loads: one that every policy holds, and one near the machine's limit. Rows of other policies in the file are kept.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict

import msgspec

from bench.paths import SCENARIOS, result_path
from veltair.commands.simulate import DEFAULT_MACHINE
from veltair.machine.environment import describe_environment
from veltair.scheduler.policies.by_name import POLICIES
from veltair.simulation.machine_model.machine_model import load_machine_model
from veltair.simulation.machine_model.modelled_profiles import scenario_models
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import SimulationScenario, read_simulation_scenario

MIX = SCENARIOS / "mix.toml"
SCALES = (0.2, 0.5)  # of the scenario's rates
BAR = 3000  # queries a second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=6000)
    parser.add_argument("--policies", type=lambda names: names.split(","), default=list(POLICIES), metavar="A,B,…")
    parser.add_argument("--out", type=result_path)
    args = parser.parse_args()
    scenario, machine = read_simulation_scenario(MIX), load_machine_model(DEFAULT_MACHINE)
    known = scenario_models(scenario, machine)
    load = msgspec.structs.replace(scenario.load, queries=args.queries)
    rows: list[dict[str, object]] = []
    for policy in args.policies:
        simulation = Simulation(SimulationScenario(scenario.tenants, load), machine, known)
        rows += [_row(simulation, policy, scale) for scale in SCALES]
    if args.out and args.out.exists():
        before = json.loads(args.out.read_text("utf-8"))["rows"]
        rows = [row for row in before if row["policy"] not in args.policies] + rows
    result = {"bar": BAR, "machine": machine.title, "rows": rows, "environment": asdict(describe_environment())}
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", "utf-8")


def _row(simulation: Simulation, policy: str, scale: float) -> dict[str, object]:
    times_s = []
    for _ in range(2):
        begin_ns = time.perf_counter_ns()
        run = simulation.run(policy, 1, scale)
        times_s.append((time.perf_counter_ns() - begin_ns) / 1e9)
    load = simulation.scenario.load
    queries = (load.queries or 0) * (1 - load.warmup)  # `run` counts after the warm-up
    return {
        "policy": policy,
        "offered_qps": round(simulation.scenario.qps * scale, 1),
        "queries": load.queries,
        "blocks_per_query": round(run.blocks / queries, 2),
        "cores_in_use": round(run.core_ns / run.window_ns, 1),
        "first_queries_per_s": round((load.queries or 0) / times_s[0]),
        "queries_per_s": round((load.queries or 0) / times_s[1]),
    }


if __name__ == "__main__":
    main()

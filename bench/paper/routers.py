"""Many machines behind each router, in virtual time: the share of queries in time, with and without failures.

    python -m bench.paper.routers [--machines 100] [--queries 15000] [--out bench/results/routers.json]

The paper's mix at 0.6 of its file's rates on each machine of 64 cores, under `veltair`. With failures, a tenth of the
machines dies after 0.2 s and is back after 0.4 s; the router knows of a death 0.1 s later. All times are virtual, so
the figures do not depend on the machine that runs this. It takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import json

import msgspec

from bench.paths import SCENARIOS, result_path
from veltair.api.simulations import DEFAULT_MACHINE, simulate
from veltair.simulation.report import PolicySummary
from veltair.simulation.routers import ROUTERS
from veltair.simulation.simulation_scenario import MachineFailure, SimulationScenario, read_simulation_scenario

SCALE = 0.6  # of the scenario's rates
DIES_S, BACK_S = 0.2, 0.4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--queries", type=int, default=15_000)
    parser.add_argument("--out", type=result_path)
    args = parser.parse_args()
    steady = _scenario(args.queries)
    dying = tuple(MachineFailure(machine=i, at_s=DIES_S, back_s=BACK_S) for i in range(args.machines // 10))
    failing = msgspec.structs.replace(steady, failures=dying)
    rows: list[dict[str, object]] = []
    for failures, scenario in ((0, steady), (len(dying), failing)):
        result = simulate(scenario, seeds=1, machines=args.machines, routers=list(ROUTERS))
        rows += [_row(summary, failures) for summary in result.policies]
    routing = msgspec.to_builtins(steady.routing)
    about = {"simulated": True, "machine": DEFAULT_MACHINE, "machines": args.machines, "queries": args.queries}
    text = json.dumps({"rows": rows, "environment": {**about, "scale": SCALE, "seed": 1, "routing": routing}}, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", "utf-8")


def _scenario(queries: int) -> SimulationScenario:
    scenario = read_simulation_scenario(SCENARIOS / "mix.toml")
    tenants = tuple(msgspec.structs.replace(each, qps=each.qps * SCALE) for each in scenario.tenants)
    return msgspec.structs.replace(
        scenario, tenants=tenants, load=msgspec.structs.replace(scenario.load, queries=queries)
    )


def _row(summary: PolicySummary, failures: int) -> dict[str, object]:
    offered = sum(tenant.offered for tenant in summary.tenants)
    rates = {tenant.name: tenant.qos_rate or 0.0 for tenant in summary.tenants}
    worst = min(rates, key=rates.__getitem__)
    return {
        "router": summary.router,
        "machines_that_die": failures,
        "offered_qps": summary.offered_qps,
        "in_time": round(sum(rates[tenant.name] * tenant.offered for tenant in summary.tenants) / offered, 4),
        "worst_tenant": worst,
        "worst_in_time": round(rates[worst], 4),
        "offered": offered,
        "refused": sum(tenant.refused for tenant in summary.tenants),
        "lost": sum(tenant.lost for tenant in summary.tenants),
    }


if __name__ == "__main__":
    main()

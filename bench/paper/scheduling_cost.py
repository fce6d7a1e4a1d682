"""The cost of one decision: the scheduler alone, on a virtual machine with many cores and queries in flight.

    python -m bench.paper.scheduling_cost [--cores 64] [--in-flight 16] [--queries 500] [--policies A,B]

Prints JSON: for each policy, microseconds per event (median, p99, greatest), per decision (one event may start several
blocks) and per query, and the environment. Runs repeat event by event, and each event counts with the least of several
runs: the time of the decision without the disturbance of other processes. Policies that decide at every layer
(layerwise, veltair-ac) have as many events per query as the model has layers. The profiles are synthetic: models of 55,
53 and 12 layers with five code versions each, at five interference levels, drawn from a fixed seed.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import asdict
from functools import cache
from random import Random
from statistics import median, quantiles

from bench.paths import result_path
from veltair.machine.environment import describe_environment
from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue
from veltair.scheduler.events import Decision, Event, QueryArrived
from veltair.scheduler.policies.by_name import POLICIES
from veltair.scheduler.scheduler import Scheduler
from veltair.simulation.interference_model import Alone, solo_times
from veltair.simulation.virtual_machine import VirtualMachine
from veltair.types import CodeVersion, LatencyTable, Layer, Machine, ModelProfile, QoSTarget, Query, Tenant

LEVELS = (1.0, 1.5, 2.0, 3.0, 4.0)
REPEATS = 5
DEPTHS = {"deep": 55, "wide": 53, "short": 12}


def synthetic(model: str, depth: int, cores: int, chance: Random) -> ModelProfile:
    """Returns a profile of layers that take 0.2 to 2 ms on one core and stop to speed up between 2 and 40 cores."""
    versions = []
    for layer in range(depth):
        work_ns, serial = chance.uniform(2e5, 2e6), chance.uniform(0.005, 0.15)
        of_layer = []
        for index in range(5):
            price, frailty = 1 + 0.08 * index, (1 - index / 5) * chance.uniform(0.3, 1.0)
            rows = [
                [round(work_ns * price * level**frailty * (serial + (1 - serial) / c)) for c in range(1, cores + 1)]
                for level in LEVELS
            ]
            table = LatencyTable(LEVELS, tuple(map(tuple, rows)))
            of_layer.append(CodeVersion(layer, index, 1 << 16, 64, f"l{layer}_v{index}", table))
        versions.append(tuple(of_layer))
    layers = tuple(Layer(i, f"layer{i}", "conv2d", (), (), 10**8, 10**6) for i in range(depth))
    return ModelProfile(model, 1, layers, tuple(versions), {}, "")


class TimedScheduler(Scheduler):
    """A scheduler that records the time of each call of `handle` and how many queries were in flight."""

    def __init__(self, *setup: object) -> None:
        super().__init__(*setup)  # type: ignore[arg-type]
        self.took_ns: list[int] = []
        self.decisions: list[int] = []
        self.in_flight: list[int] = []

    def handle(self, event: Event) -> list[Decision]:
        begin_ns = time.perf_counter_ns()
        decisions = super().handle(event)
        self.took_ns.append(time.perf_counter_ns() - begin_ns)
        self.decisions.append(len(decisions))
        self.in_flight.append(len(self.state.in_flight))
        return decisions


@cache
def catalogue(cores: int) -> ProfileCatalogue:
    """Returns one catalogue for all runs, as in a daemon that has run for a while, whose caches are filled."""
    chance = Random(2026)
    return ProfileCatalogue({model: [synthetic(model, depth, cores, chance)] for model, depth in DEPTHS.items()}, cores)


def run(policy: str, cores: int, in_flight: int, queries: int, load: float) -> TimedScheduler:
    """Runs a policy under a load: the offered work over the capacity of cores that all run one-core blocks."""
    known = catalogue(cores)
    chance = Random(2027)
    machine = Machine(tuple(tuple(range(i, min(i + 4, cores))) for i in range(0, cores, 4)))
    work_ns = {
        model: sum(of_layer[0].latency.at(1.0, 1) for of_layer in costs.profile.versions)
        for model, (costs,) in known.costs.items()
    }
    tenants = [Tenant(model, model, QoSTarget(work_ns[model] // 2)) for model in work_ns]
    scheduler = TimedScheduler(machine, tenants, known, policy, in_flight)
    slower = [chance.uniform(1.0, 1.3) for _ in range(997)]
    solo_ns = solo_times(scheduler)
    count = 0

    def layer_ns(query: int, layer: int, version: int, cores: int) -> int:
        nonlocal count
        count += 1
        return round(solo_ns(query, layer, version, cores) * slower[count % len(slower)])

    virtual = VirtualMachine(scheduler, Alone(layer_ns))
    now_ns = 0
    gap_ns = sum(work_ns.values()) / len(work_ns) / cores / load
    for id in range(queries):
        now_ns += round(chance.expovariate(1 / gap_ns))
        tenant = chance.choice(tenants)
        virtual.add_event(QueryArrived(now_ns, Query(id, tenant.name, now_ns)))
    gc.disable()
    for _ in virtual.run():
        pass
    gc.enable()
    return scheduler


def row(policy: str, cores: int, in_flight: int, queries: int, load: float) -> dict[str, object]:
    runs = [run(policy, cores, in_flight, queries, load) for _ in range(REPEATS)]
    scheduler = runs[0]
    each_us = [min(took) / 1000 for took in zip(*(run.took_ns for run in runs), strict=True)]
    decision_us = [us / max(count, 1) for us, count in zip(each_us, scheduler.decisions, strict=True)]
    took_us = sorted(each_us)
    stats = scheduler.stats()
    return {
        "policy": policy,
        "cores": cores,
        "workers": in_flight,
        "load": load,
        "events": len(took_us),
        "median_in_flight": median(scheduler.in_flight),
        "blocks_per_query": round(stats.blocks_started / queries, 2),
        "conflict_rate": round(stats.conflicts / stats.blocks_started, 3),
        "median_us": round(median(took_us), 1),
        "p99_us": round(quantiles(took_us, n=100)[98], 1),
        "max_us": round(took_us[-1], 1),
        "decision_p99_us": round(quantiles(decision_us, n=100)[98], 1),
        "us_per_query": round(sum(took_us) / queries, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=64)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--policies", type=lambda names: names.split(","), default=list(POLICIES), metavar="A,B,…")
    parser.add_argument("--out", type=result_path)
    arguments = parser.parse_args()
    rows = [
        row(policy, arguments.cores, arguments.in_flight, arguments.queries, load)
        for policy in arguments.policies
        for load in (0.4, 0.6)
    ]
    text = json.dumps({"rows": rows, "environment": asdict(describe_environment())}, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()

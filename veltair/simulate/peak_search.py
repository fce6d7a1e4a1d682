"""The highest rate at which every tenant's QoS holds, by bisection; the same for all policies but for the policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TextIO, TypeAlias

from veltair.loadgen.peak import bisect_scale
from veltair.loadgen.tenant_results import TenantOutcomes, pool_outcomes
from veltair.simulate.simulation import Run, Simulation

Tick: TypeAlias = Callable[[float], None]

WIDTH = 0.01  # of the final bracket, relative to its lower end


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One factor on the scenario's rates, tried with one run for each seed."""

    scale: float
    offered_qps: float  # of all tenants together, on average
    runs: list[Run]  # a hopeless factor is given up early
    tallies: list[TenantOutcomes]  # pooled
    held: bool

    @property
    def qps(self) -> float:
        """Answered, all tenants together: the rate without the luck of the arrivals."""
        offered = sum(tally.offered for tally in self.tallies)
        return self.offered_qps * sum(len(tally.latency_ns) for tally in self.tallies) / offered if offered else 0.0


def probe(
    simulation: Simulation,
    policy: str,
    seeds: Sequence[int],
    scale: float = 1.0,
    *,
    give_up: bool = False,
    log: TextIO | None = None,
    tick: Tick | None = None,
) -> Probe:
    """`give_up`: as soon as the QoS cannot be held any more; what the probe shows is then of no worth but that."""
    runs: list[Run] = []
    for seed in seeds:
        planned = len(seeds) if give_up else None
        within = None if tick is None else partial(_tick, tick, len(runs), len(seeds))
        runs.append(simulation.run(policy, seed, scale, planned=planned, before=tuple(runs), log=log, tick=within))
        if runs[-1].abandoned:
            break
    total = pool_outcomes([run.tallies for run in runs])
    held = not runs[-1].abandoned and all(tally.qos_held for tally in total)
    return Probe(scale, simulation.scenario.qps * scale, runs, total, held)


def find_peak(
    simulation: Simulation, policy: str, seeds: Sequence[int], tick: Callable[[float, float], None] | None = None
) -> Iterator[Probe]:
    """The probes as they end; the peak is the one of the highest factor that held.

    Each factor is tried with the same seeds, so that two differ in nothing but the rate. `tick` is told the factor
    and the share of its runs that is over.
    """
    search = bisect_scale(WIDTH)
    scale = next(search)
    while True:
        told = None if tick is None else partial(tick, scale)
        tried = probe(simulation, policy, seeds, scale, give_up=True, tick=told)
        yield tried
        try:
            scale = search.send(tried.held)
        except StopIteration:
            return


def _tick(tick: Tick, runs: int, planned: int, over: float) -> None:
    tick((runs + over) / planned)

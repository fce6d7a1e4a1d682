"""Searches the highest rate at which every tenant's QoS holds by bisection, in the same way for all policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TextIO, TypeAlias

from veltair.loadgen.peak import bisect_scale
from veltair.loadgen.tenant_results import TenantOutcomes, pool_outcomes
from veltair.simulation.miss_budget import MissBudget
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_run import SimulationRun

ReportProgress: TypeAlias = Callable[[float], None]  # gets the share that is done, 0 to 1

WIDTH = 0.01  # of the final bracket, relative to its lower end


@dataclass(frozen=True, slots=True, eq=False)
class RateTrial:
    """One factor on the scenario's rates, tried with one run for each seed.

    >>> trial = RateTrial(scale=2.0, offered_qps=300.0, runs=[], outcomes=[], held=False)
    >>> trial.qps
    0.0
    """

    scale: float
    offered_qps: float  # of all tenants together, on average
    runs: list[SimulationRun]  # fewer than seeds where the factor was given up early
    outcomes: list[TenantOutcomes]  # pooled over the runs
    held: bool

    @property
    def qps(self) -> float:
        """Answered queries per second of all tenants together, without the chance of the arrivals."""
        offered = sum(outcome.offered for outcome in self.outcomes)
        return (
            self.offered_qps * sum(len(outcome.latency_ns) for outcome in self.outcomes) / offered if offered else 0.0
        )


def try_scale(
    simulation: Simulation,
    policy: str,
    seeds: Sequence[int],
    scale: float = 1.0,
    *,
    give_up: bool = False,
    pooled: bool = False,
    log: TextIO | None = None,
    report: ReportProgress | None = None,
) -> RateTrial:
    """Runs a policy at `scale` times the scenario's rates, once for each seed.

    `give_up`: stops as soon as the QoS cannot be held any more; the trial then says that it did not hold, and its other
    figures mean nothing. `pooled`: the QoS holds if as many queries are in time as the tenants' percentiles ask for
    together, whichever tenant's they are ("95 % of the tasks", VELTAIR section 5.1), else by tenant.
    """
    runs: list[SimulationRun] = []
    for seed in seeds:
        budget = MissBudget(len(seeds), tuple(runs), pooled) if give_up else None
        own_report = None if report is None else partial(_report_run, report, len(runs), len(seeds))
        runs.append(simulation.run(policy, seed, scale, budget=budget, log=log, report=own_report))
        if runs[-1].abandoned:
            break
    total = pool_outcomes([run.outcomes for run in runs])
    held = not runs[-1].abandoned and (_hold_together(total) if pooled else all(each.qos_held for each in total))
    return RateTrial(scale, simulation.scenario.qps * scale, runs, total, held)


def find_peak(
    simulation: Simulation,
    policy: str,
    seeds: Sequence[int],
    report: Callable[[float, float], None] | None = None,
    *,
    pooled: bool = False,
) -> Iterator[RateTrial]:
    """Yields the trials as they end; the peak is the trial with the highest factor that held.

    All factors are tried with the same seeds, so that two trials differ in nothing but the rate. `report` gets the
    factor and the share of its runs that is done. `pooled`: see `try_scale`.
    """
    search = bisect_scale(WIDTH)
    scale = next(search)
    while True:
        own_report = None if report is None else partial(report, scale)
        trial = try_scale(simulation, policy, seeds, scale, give_up=True, pooled=pooled, report=own_report)
        yield trial
        try:
            scale = search.send(trial.held)
        except StopIteration:
            return


def _hold_together(outcomes: Sequence[TenantOutcomes]) -> bool:
    asked = sum(outcome.percentile * outcome.offered for outcome in outcomes)
    return asked > 0 and sum(outcome.in_time for outcome in outcomes) >= asked - 1e-9


def _report_run(report: ReportProgress, runs: int, planned: int, done: float) -> None:
    report((runs + done) / planned)

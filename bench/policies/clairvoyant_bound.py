"""What no scheduler exceeds with these very arrivals, one that knows them all beforehand too.

`veltair.simulation.oracle_bound` divides core time by core time and knows nothing of bursts. Here the arrivals of a
seed are given, as a policy meets them, and a linear program tells whether any schedule holds every percentile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from bench.paper.experiments import with_load, workload_simulation
from bench.policies.seed_peaks import VERSIONS, Setting
from veltair.loadgen.arrivals import Times
from veltair.simulation.arrivals import draw_arrivals
from veltair.simulation.oracle_bound import least_core_ns, oracle_qps
from veltair.simulation.simulation import Simulation

WIDTH = 0.01  # of the bracket, over its lower end
HELD = 1 - 1e-6  # of what the percentiles ask for, as exact as the solver is


@dataclass(frozen=True, slots=True)
class TenantDemand:
    """What a tenant asks of a run.

    ::

        TenantDemand(arrivals_ns, target_ns=100, core_ns=400.0, wanted=9.5)  # of ten queries that count
    """

    arrivals_ns: Times  # ascending
    target_ns: int
    core_ns: float  # that a query in time holds cores for, at least
    wanted: float  # queries in time, of those that count
    counts_from_ns: int = 0  # earlier arrivals warm up, and may all be dropped


def clairvoyant_qps(setting: Setting, percentile: float, seed: int) -> float:
    """Returns the queries per second of all tenants, offered in the measured part of a run, from which on no scheduler
    holds every percentile with the arrivals of this seed: an upper bound of `seed_peaks.peak_qps`.
    """
    workload, machine, relaxed, queries = setting
    base = workload_simulation(workload, percentile, VERSIONS, machine=machine, relaxed=relaxed)
    simulation = with_load(base, queries=queries)
    cores = len(simulation.machine.cores)
    core_ns = [
        least_core_ns(simulation.execution_rates[tenant.model, 1], cores, tenant.target_ns)
        for tenant in simulation.scenario.tenants
    ]

    def holds(scale: float) -> bool:
        return can_hold(_demands(simulation, core_ns, scale, seed), cores)

    low, high = 0.0, oracle_qps(simulation) / simulation.scenario.qps
    while holds(high):
        low, high = high, high * 1.5
    while high - low > WIDTH * max(low, WIDTH):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    demands = _demands(simulation, core_ns, high, seed)
    warm_ns = demands[0].counts_from_ns
    offered = sum(int((demand.arrivals_ns >= warm_ns).sum()) for demand in demands)
    return offered * 1e9 / (simulation.duration_ns(high) - warm_ns)


def can_hold(demands: Sequence[TenantDemand], cores: int) -> bool:
    """Returns False only where no schedule on that many cores has as many queries in time as each tenant wants.

    Proof. A query in time holds cores for `core_ns` or more between its arrival and its deadline. Cut time at all
    arrivals and deadlines, and let y[j, k] be the share of its `core_ns` that a schedule gives query j in stretch k,
    as far as it counts. Then a stretch gives at most its length times the cores, a query's sum is at most 1, and the
    sum over a tenant's queries is at least `wanted`. The program looks for any such y, and so for parts of queries too,
    on any number of cores at once.

    Where a y exists for arrivals, one exists for the same arrivals further apart: any set of queries has no less time
    then between its first arrival and its last deadline, and work that may run on all cores at once fits if and only if
    the work of each such set does (preemptive schedules by the earliest deadline). So a peak can be bisected.
    """
    arrives = np.concatenate([demand.arrivals_ns for demand in demands])
    tenant = np.repeat(np.arange(len(demands)), [len(demand.arrivals_ns) for demand in demands])
    due = arrives + np.array([demand.target_ns for demand in demands])[tenant]
    edges = np.unique(np.concatenate([arrives, due]))
    begins, ends = np.searchsorted(edges, arrives), np.searchsorted(edges, due)
    stretches = ends - begins  # of each query
    query = np.repeat(np.arange(len(arrives)), stretches)  # of each variable, as is the next
    stretch = np.arange(len(query)) - np.repeat(np.cumsum(stretches) - stretches, stretches) + begins[query]
    held = np.array([demand.core_ns for demand in demands])[tenant[query]] / (cores * np.diff(edges)[stretch])
    counts = (arrives >= np.array([demand.counts_from_ns for demand in demands])[tenant])[query]
    variables = np.arange(len(query))
    fulfilled = len(query)  # one more variable: the least share of what is wanted, over the tenants
    of_query, of_tenant = len(edges), len(edges) + len(arrives)  # first rows of the two other kinds of constraints
    rows = [stretch, of_query + query, of_tenant + tenant[query[counts]], of_tenant + np.arange(len(demands))]
    columns = [variables, variables, variables[counts], np.full(len(demands), fulfilled)]
    wanted = np.array([demand.wanted for demand in demands])
    values = [held, np.ones(len(query)), -np.ones(int(counts.sum())), wanted]
    most = np.concatenate([np.ones(of_tenant), np.zeros(len(demands))])
    matrix = csr_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(len(most), len(query) + 1)
    )
    goal = np.zeros(len(query) + 1)
    goal[fulfilled] = -1.0
    found = linprog(goal, A_ub=matrix, b_ub=most, bounds=(0.0, 1.0), method="highs")
    return bool(found.status != 0 or -found.fun >= HELD)  # not solved: nothing is proved


def _demands(simulation: Simulation, core_ns: Sequence[float], scale: float, seed: int) -> list[TenantDemand]:
    """Returns what the tenants ask of a run at `scale` times the scenario's rates."""
    scenario, duration_ns = simulation.scenario, simulation.duration_ns(scale)
    warm_ns = round(duration_ns * scenario.load.warmup)
    demands = []
    for load, least_ns, times in zip(
        scenario.tenants, core_ns, draw_arrivals(scenario, scale, seed, duration_ns), strict=True
    ):
        wanted = load.percentile * int((times >= warm_ns).sum())
        demands.append(TenantDemand(times, load.target_ns, least_ns, wanted, warm_ns))
    return demands

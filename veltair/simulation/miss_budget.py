"""How many queries the runs of one rate may miss together: a run that has missed more is given up early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from veltair.loadgen.arrivals import Times
from veltair.simulation.simulation_run import SimulationRun
from veltair.simulation.simulation_scenario import TenantWorkload


@dataclass(frozen=True, slots=True, eq=False)
class MissBudget:
    """What some runs with different seeds may miss before the QoS cannot hold in all of them together.

    >>> MissBudget(runs=3).pooled
    False
    """

    runs: int  # planned ones, the run that asks among them
    before: Sequence[SimulationRun] = ()  # those that have ended; what they missed is spent
    pooled: bool = False  # all tenants together may miss as many, whoever misses them


class MissWatch:
    """Tells of one run whether it has missed more than its budget has left.

    ::

        watch = MissWatch(MissBudget(runs=1), scenario.tenants, arrivals, warm_ns)
        watch.is_lost(virtual.now_ns, front_end.ended_ns)
    """

    def __init__(
        self, budget: MissBudget, tenants: Sequence[TenantWorkload], arrivals: Sequence[Times], warm_ns: int
    ) -> None:
        """`arrivals`: of each tenant, in ns. Those before `warm_ns` do not count."""
        self._tenants, self._arrivals, self._warm_ns = tenants, arrivals, warm_ns
        left = [
            (1 - tenant.percentile) * int((times >= warm_ns).sum()) * budget.runs
            - sum(run.outcomes[i].offered - run.outcomes[i].in_time for run in budget.before)
            for i, (tenant, times) in enumerate(zip(tenants, arrivals, strict=True))
        ]
        self._left = [sum(left)] if budget.pooled else left  # queries, by tenant or of all of them

    def is_lost(self, now_ns: int, ended_ns: Mapping[int, int]) -> bool:
        """Whether more queries are late or overdue than may be. `ended_ns`: of each query that has ended."""
        first, misses = 0, []
        ended = np.full(sum(map(len, self._arrivals)), np.iinfo(np.int64).max)
        for id, at_ns in ended_ns.items():
            ended[id] = at_ns
        for tenant, times in zip(self._tenants, self._arrivals, strict=True):
            due_ns = times + tenant.target_ns
            missed = (times >= self._warm_ns) & (due_ns < now_ns) & (ended[first : first + len(times)] > due_ns)
            misses.append(int(missed.sum()))
            first += len(times)
        if len(self._left) == 1:
            return sum(misses) > self._left[0]
        return any(count > most for count, most in zip(misses, self._left, strict=True))

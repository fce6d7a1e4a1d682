"""One of many machines in virtual time, from when it begins to serve until it dies."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from veltair.simulation.headroom import MachineReport
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_run import RunMeter

FORGETS = 0.5  # of what it remembers of late queries, at each report


class HeldQuery(NamedTuple):
    tenant: int
    due_ns: int


class RoutedMachine:
    """A virtual machine that is brought up to a time only when somebody looks at it, which changes nothing it does.

    ::

        machine = RoutedMachine(simulation, "veltair", 0, rng, duration_ns)
        machine.send(7, tenant=0, time_ns=1_000)
        machine.advance(2_000_000)
        machine.held, machine.answered_ns
    """

    def __init__(
        self,
        simulation: Simulation,
        policy: str,
        number: int,
        rng: np.random.Generator,
        duration_ns: int,
    ) -> None:
        """`duration_ns`: how long queries arrive."""
        self.number, self._tenants = number, simulation.tenants
        scheduler = simulation.scheduler(policy)
        self._virtual = simulation.virtual_machine(scheduler, rng)
        self._front_end = simulation.front_end(self._virtual)
        self.meter = RunMeter(scheduler, round(duration_ns * simulation.scenario.load.warmup), duration_ns)
        self.held: dict[int, HeldQuery] = {}
        self.answered_ns = self._front_end.ended_ns
        self.rejected: list[int] = []
        self._ended, self._late = np.zeros(len(self._tenants)), np.zeros(len(self._tenants))  # by tenant, of late

    def send(self, query: int, tenant: int, time_ns: int) -> None:
        """Gives it a query; not before a time up to which it has advanced."""
        about = self._tenants[tenant]
        self.held[query] = HeldQuery(tenant, time_ns + about.qos.latency_ns)
        self._front_end.send(query, about, time_ns)

    def advance(self, until_ns: float = inf) -> None:
        """Lets everything before `until_ns` happen."""
        for _, decisions in self._virtual.run(until_ns):
            self.meter.add(self._virtual.now_ns, decisions)
            self._front_end.answer(decisions)
        outcome = self._virtual.outcome
        rejected = [query for query in self.held if outcome.get(query) == "rejected"]
        answered = [query for query in self.held if query in self.answered_ns]
        for query in rejected:
            self._end(query, late=True)
        for query in answered:
            self._end(query, late=self.answered_ns[query] > self.held[query].due_ns)
        self.rejected += rejected

    def report(self, now_ns: int) -> MachineReport:
        """Says what it holds, and how much more was late than may be."""
        held = [0] * len(self._tenants)
        for query in self.held.values():
            held[query.tenant] += 1
        allowed = np.array([1 - tenant.qos.percentile for tenant in self._tenants])
        debt = np.maximum(self._late / (self._ended + 1) - allowed, 0.0)
        self._late *= FORGETS
        self._ended *= FORGETS
        return MachineReport(self.number, now_ns, tuple(held), tuple(debt.tolist()))

    def _end(self, query: int, late: bool) -> None:
        tenant = self.held.pop(query).tenant
        self._ended[tenant] += 1
        self._late[tenant] += late

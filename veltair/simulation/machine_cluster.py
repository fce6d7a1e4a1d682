"""Many machines behind a router in virtual time: arrivals, reports, deaths and returns in order of time.

Machines know nothing of each other, so each is brought up to the present only when the router looks at it or sends it
a query. The rates of the scenario are those of one machine; as many times more queries arrive as there are machines.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from random import Random
from typing import TypeAlias

import numpy as np

from veltair.errors import ConfigError, InvariantError
from veltair.simulation.arrivals import draw_arrivals
from veltair.simulation.headroom import MachineReport, estimate_core_ns
from veltair.simulation.routed_machine import RoutedMachine
from veltair.simulation.routers import ROUTERS, RouterView
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_run import SimulationRun
from veltair.simulation.simulation_scenario import SimulationScenario

MOST_MACHINES = 10_000
REPORT_EVENTS = 256  # events between two looks at the progress

_Action: TypeAlias = Callable[[int], None]  # gets the time


def check_cluster(scenario: SimulationScenario, machines: int) -> None:
    """Raises ConfigError where the scenario is not one for so many machines."""
    if not 1 <= machines <= MOST_MACHINES:
        raise ConfigError(f"expected 1 to {MOST_MACHINES} machines, got {machines}")
    if scenario.load.proxy == "counters":
        raise ConfigError('load.proxy: "counters" is for one machine; expected "observed" or "demand"')
    for i, failure in enumerate(scenario.failures):
        if failure.machine >= machines:
            raise ConfigError(f"failures[{i}].machine: expected below {machines}, got {failure.machine}")
    for i, tenant in enumerate(scenario.tenants):
        if tenant.machines is not None and not tenant.machines:
            raise ConfigError(f"tenants[{i}].machines: expected at least one machine")
        if tenant.machines is not None and max(tenant.machines) >= machines:
            raise ConfigError(f"tenants[{i}].machines: expected below {machines}, got {max(tenant.machines)}")


class MachineCluster:
    """One run of a scenario on many machines of one kind; the same arguments give the same run.

    ::

        cluster = MachineCluster(simulation, "veltair", "deadlines", machines=100, seed=1)
        cluster.run().outcomes[0].qos_rate
        cluster.outcome[17]  # answered, rejected, unrouted or lost
    """

    def __init__(self, simulation: Simulation, policy: str, router: str, machines: int, seed: int) -> None:
        check_cluster(simulation.scenario, machines)
        self._simulation, self._policy, self._seed = simulation, policy, seed
        scenario = simulation.scenario
        self.duration_ns = simulation.duration_ns(machines)
        self._arrivals = draw_arrivals(scenario, machines, seed, self.duration_ns)
        core_ns = [
            estimate_core_ns(simulation.profiles[tenant.model][0], tenant.target_ns) for tenant in scenario.tenants
        ]
        self._lives = [0] * machines  # how often each has died
        self._machines: list[RoutedMachine | None] = [self._new_machine(number) for number in range(machines)]
        self._gone: list[RoutedMachine] = []
        self._known_alive = [True] * machines  # as the router knows
        self._candidates: list[list[int]] = []
        self._find_candidates()
        targets = [tenant.target_ns for tenant in scenario.tenants]
        cores = len(simulation.machine.cores)
        view = RouterView(machines, cores, targets, core_ns, Random(seed), self._queue_length)
        self._router = ROUTERS[router](view)
        self.outcome: dict[int, str] = {}  # by query: answered, rejected, unrouted (no machine had its tenant) or lost
        self._now_ns = self._count = 0
        self._due: list[tuple[int, int, _Action]] = []  # a heap
        self._plan()

    def run(self, report: Callable[[float], None] | None = None) -> SimulationRun:
        """Runs to the end of the last query. `report` gets the share of the arrivals' time that is over."""
        for count in range(1, 2**62):
            if not self._due:
                break
            self._now_ns, _, action = heappop(self._due)
            action(self._now_ns)
            if report is not None and count % REPORT_EVENTS == 0:
                report(min(self._now_ns / self.duration_ns, 1.0))
        answered_ns: dict[int, int] = {}
        lives = [*self._gone, *(machine for machine in self._machines if machine is not None)]
        for machine in lives:
            if machine not in self._gone:
                machine.advance()
            for query in machine.rejected:
                self._end(query, "rejected")
            for query in machine.answered_ns.keys() - machine.held.keys():
                self._end(query, "answered")
                answered_ns[query] = machine.answered_ns[query]
            if machine not in self._gone and machine.held:
                raise InvariantError(f"machine {machine.number} stands still and holds {len(machine.held)} queries")
        refused = {query: "rejected" if how == "unrouted" else how for query, how in self.outcome.items()}
        load, meters = self._simulation.scenario.load, [machine.meter for machine in lives]
        return SimulationRun(
            self._simulation.outcomes(answered_ns, refused, self._arrivals, self.duration_ns),
            sum(meter.blocks for meter in meters),
            sum(meter.conflicts for meter in meters),
            sum(meter.core_ns for meter in meters),
            self.duration_ns - round(self.duration_ns * load.warmup),
            abandoned=False,
        )

    def _plan(self) -> None:
        scenario, routing = self._simulation.scenario, self._simulation.scenario.routing
        notice_ns = round(routing.notice_ms * 1e6)
        for failure in scenario.failures:
            at_ns, number = round(failure.at_s * 1e9), failure.machine
            self._at(at_ns, partial(self._die, number))
            self._at(at_ns + notice_ns, partial(self._notice, number))
            if failure.back_s is not None:
                self._at(round(failure.back_s * 1e9), partial(self._return, number))
        if self._router.takes_reports:
            period_ns = round(routing.report_period_ms * 1e6)
            for number in range(len(self._machines)):  # one after the other within a period
                first_ns = period_ns * number // len(self._machines)
                self._at(first_ns, partial(self._report, number))
        query = 0
        for tenant, times in enumerate(self._arrivals):
            for time_ns in times.tolist():
                self._at(time_ns, partial(self._route, query, tenant))
                query += 1
        heapify(self._due)

    def _at(self, time_ns: int, action: _Action) -> None:
        self._count += 1
        heappush(self._due, (time_ns, self._count, action))

    def _new_machine(self, number: int) -> RoutedMachine:
        rng = np.random.default_rng([self._seed, len(self._arrivals), number, self._lives[number]])
        return RoutedMachine(self._simulation, self._policy, number, rng, self.duration_ns)

    def _route(self, query: int, tenant: int, now_ns: int) -> None:
        if not self._candidates[tenant]:
            self._end(query, "unrouted")
            return
        machine = self._machines[self._router.choose(tenant, self._candidates[tenant], now_ns)]
        if machine is None:  # dead, and the router does not know yet
            self._end(query, "lost")
            return
        machine.advance(now_ns)
        machine.send(query, tenant, now_ns)

    def _queue_length(self, number: int) -> int:
        machine = self._machines[number]
        if machine is None:
            return 0  # nothing that it held is left, and the router does not know why
        machine.advance(self._now_ns)
        return len(machine.held)

    def _report(self, number: int, now_ns: int) -> None:
        routing = self._simulation.scenario.routing
        if (machine := self._machines[number]) is not None:
            machine.advance(now_ns)
            self._at(now_ns + round(routing.report_delay_ms * 1e6), self._arrival_of(machine.report(now_ns)))
        if now_ns < self.duration_ns:
            self._at(now_ns + round(routing.report_period_ms * 1e6), partial(self._report, number))

    def _arrival_of(self, report: MachineReport) -> _Action:
        return lambda _: self._router.report(report)

    def _die(self, number: int, now_ns: int) -> None:
        machine = self._machines[number]
        if machine is None:
            raise InvariantError(f"machine {number} died twice")
        machine.advance(now_ns)
        for query in machine.held:
            self._end(query, "lost")
        self._gone.append(machine)
        self._machines[number] = None
        self._lives[number] += 1

    def _notice(self, number: int, _: int) -> None:
        if self._machines[number] is None:  # else it is back already
            self._known_alive[number] = False
            self._find_candidates()

    def _return(self, number: int, _: int) -> None:
        self._machines[number] = self._new_machine(number)
        self._known_alive[number] = True
        self._find_candidates()

    def _find_candidates(self) -> None:
        every = range(len(self._machines))
        self._candidates = [
            [n for n in (every if tenant.machines is None else sorted(set(tenant.machines))) if self._known_alive[n]]
            for tenant in self._simulation.scenario.tenants
        ]

    def _end(self, query: int, how: str) -> None:
        if query in self.outcome:
            raise InvariantError(f"query {query} ended twice: {self.outcome[query]}, then {how}")
        self.outcome[query] = how

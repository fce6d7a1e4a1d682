"""Routers: which of many machines gets a query.

A router knows what `veltair.simulation.machine_cluster` tells it: the queue length of a machine where it asks, and the
reports of all machines, which are as old as the scenario says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Protocol

import numpy as np

from veltair.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What a machine says of itself.

    >>> MachineReport(machine=3, time_ns=0, held=(2,), debt=(0.0,)).machine
    3
    """

    machine: int
    time_ns: int  # when it was true
    held: tuple[int, ...]  # by tenant: queries that it has not answered
    debt: tuple[float, ...]  # by tenant: share of its latest queries that were late, beyond what its percentile allows


@dataclass(frozen=True, slots=True)
class RouterView:
    """What a router may know and use.

    >>> RouterView(2, 64, (1e7,), (3e6,), Random(1), queue_length=lambda machine: 0).cores
    64
    """

    machines: int
    cores: int  # of one machine
    target_ns: Sequence[float]  # by tenant
    core_ns: Sequence[float]  # by tenant: core time of a query on the fewest cores that are in time
    rng: Random
    queue_length: Callable[[int], int]  # queries sent to a machine that have not ended, as it is at this moment


class Router(Protocol):
    """Chooses a machine for each query."""

    takes_reports: bool

    def choose(self, tenant: int, machines: Sequence[int], now_ns: int) -> int:
        """Returns one of `machines`: at least one, those not known to be dead where the tenant is resident."""

    def report(self, report: MachineReport) -> None:
        """A machine's report has arrived."""


class RandomRouter:
    """Any machine, each as likely."""

    takes_reports = False

    def __init__(self, view: RouterView) -> None:
        self._rng = view.rng

    def choose(self, tenant: int, machines: Sequence[int], now_ns: int) -> int:
        return self._rng.choice(machines)

    def report(self, report: MachineReport) -> None:
        pass


class RoundRobin:
    """One machine after the other."""

    takes_reports = False

    def __init__(self, view: RouterView) -> None:
        self._sent = 0

    def choose(self, tenant: int, machines: Sequence[int], now_ns: int) -> int:
        self._sent += 1
        return machines[self._sent % len(machines)]

    def report(self, report: MachineReport) -> None:
        pass


class PowerOfTwoChoices:
    """The one of two random machines that holds fewer queries, as Ray Serve's default router chooses.

    It gets the length of both queues as they are at that moment; Ray's may be out of date.
    """

    takes_reports = False

    def __init__(self, view: RouterView) -> None:
        self._rng, self._queue_length = view.rng, view.queue_length

    def choose(self, tenant: int, machines: Sequence[int], now_ns: int) -> int:
        if len(machines) == 1:
            return machines[0]
        return min(self._rng.sample(machines, 2), key=self._queue_length)

    def report(self, report: MachineReport) -> None:
        pass


class DeadlineRouter:
    """The machine with the most headroom, less the SLO debt that the tenant has there.

    Headroom is the share of a machine's cores that is left when each query which it holds has as many as it needs to
    be in time. Reports say what a machine holds; between two of them the router takes queries to leave evenly until
    their deadlines, and adds those that it has sent itself. It fails as reports age: what takes longer than foreseen,
    such as beside other blocks, is only seen in the next one.
    """

    takes_reports = True

    def __init__(self, view: RouterView) -> None:
        self._rng = view.rng
        self._targets = np.array(view.target_ns, float)
        self._needs = np.array(view.core_ns, float) / self._targets / view.cores  # by tenant: share of a machine
        self._held = np.zeros((view.machines, len(self._targets)))  # share of the cores needed, by the last report
        self._debt = np.zeros_like(self._held)
        self._reported_ns = np.zeros((view.machines, 1))
        self._sent = np.zeros(view.machines)  # share of the cores needed for what was sent since
        self._leaves: list[tuple[float, int, int]] = []  # a heap of what was sent: deadline, number, machine
        self._since: list[dict[int, tuple[int, int]]] = [{} for _ in range(view.machines)]  # number: time, tenant
        self._count = 0

    def choose(self, tenant: int, machines: Sequence[int], now_ns: int) -> int:
        self._forget_overdue(now_ns)
        left = np.clip(1.0 - (now_ns - self._reported_ns) / self._targets, 0.0, 1.0)
        headroom = (1.0 - (self._held * left).sum(axis=1) - self._sent - self._debt[:, tenant])[list(machines)]
        chosen = machines[self._rng.choice(np.flatnonzero(headroom == headroom.max()).tolist())]
        self._count += 1
        self._since[chosen][self._count] = now_ns, tenant
        self._sent[chosen] += self._needs[tenant]
        heappush(self._leaves, (now_ns + self._targets[tenant], self._count, chosen))
        return chosen

    def report(self, report: MachineReport) -> None:
        machine = report.machine
        self._held[machine] = np.array(report.held) * self._needs
        self._debt[machine], self._reported_ns[machine] = report.debt, report.time_ns
        since = {number: each for number, each in self._since[machine].items() if each[0] >= report.time_ns}
        self._since[machine] = since
        self._sent[machine] = sum(self._needs[tenant] for _, tenant in since.values())

    def _forget_overdue(self, now_ns: int) -> None:
        while self._leaves and self._leaves[0][0] <= now_ns:
            _, number, machine = heappop(self._leaves)
            if (sent := self._since[machine].pop(number, None)) is not None:
                self._sent[machine] -= self._needs[sent[1]]


ROUTERS: dict[str, Callable[[RouterView], Router]] = {
    "random": RandomRouter,
    "round-robin": RoundRobin,
    "two-choices": PowerOfTwoChoices,
    "deadlines": DeadlineRouter,
}


def chosen_routers(names: Sequence[str]) -> list[str]:
    """Returns the names, each once. Raises ConfigError for one that is no router's."""
    for name in names:
        if name not in ROUTERS:
            raise ConfigError(f"unknown router {name!r}: expected one of {', '.join(ROUTERS)}")
    return list(dict.fromkeys(names))

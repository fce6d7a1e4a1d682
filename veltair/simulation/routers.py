"""Routers: which of many machines gets a query.

A router knows what `veltair.simulation.machine_cluster` tells it: the queue length of a machine where it asks, and the
reports of all machines, which are as old as the scenario says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np

from veltair.errors import ConfigError
from veltair.simulation.headroom import Headroom, MachineReport


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
    """The machine with the most `Headroom`, less the SLO debt that the tenant has there.

    It fails as reports age: what takes longer than foreseen, such as beside other blocks, is only seen in the next one.
    """

    takes_reports = True

    def __init__(self, view: RouterView) -> None:
        self._rng = view.rng
        core_ns = [view.core_ns] * view.machines
        self._headroom = Headroom(view.target_ns, core_ns, [view.cores] * view.machines)

    def choose(self, tenant: int, machines: Sequence[int], now_ns: int) -> int:
        headroom = self._headroom.of(tenant, now_ns)[list(machines)]
        chosen = machines[self._rng.choice(np.flatnonzero(headroom == headroom.max()).tolist())]
        self._headroom.send(chosen, tenant, now_ns)
        return chosen

    def report(self, report: MachineReport) -> None:
        self._headroom.report(report)


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

"""The rule of deadlines: how much of its cores a machine has left, as a router before several machines knows it.

The simulator's router and the one of `veltair.ray` follow the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.types import ModelProfile


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


def estimate_core_ns(profile: ModelProfile, target_ns: int) -> float:
    """Returns the core time of a query on the fewest cores that meet the target, alone on the machine, else on all."""
    cores = len(profile.versions[0][0].latency.latency_ns[0])
    for count in range(1, cores + 1):
        time_ns = sum(min(each.latency.latency_ns[0][count - 1] for each in layer) for layer in profile.versions)
        if time_ns <= target_ns:
            break
    return float(count * time_ns)


class Headroom:
    """The share of each machine's cores that is left when each query which it holds has as many as it needs to be in
    time, less the SLO debt that a tenant has there.

    Reports say what a machine holds; between two of them its queries are taken to leave evenly until their deadlines,
    and those are added that were sent since.

    >>> headroom = Headroom(target_ns=[1e7], core_ns=[[4e7], [4e7]], cores=[8, 4])
    >>> headroom.send(0, tenant=0, now_ns=0)
    >>> headroom.of(tenant=0, now_ns=0).tolist()
    [0.5, 1.0]
    """

    def __init__(self, target_ns: Sequence[float], core_ns: Sequence[Sequence[float]], cores: Sequence[float]) -> None:
        """`target_ns`: by tenant. `core_ns`: by machine and tenant, as `estimate_core_ns` says. `cores`: by machine."""
        machines = len(cores)
        self._targets = np.array(target_ns, float)
        # by machine and tenant: share of the machine's cores that a query needs
        self._needs = np.array(core_ns, float) / self._targets / np.array(cores, float)[:, None]
        self._held = np.zeros((machines, len(self._targets)))  # share of the cores needed, by the last report
        self._debt = np.zeros_like(self._held)
        self._reported_ns = np.zeros((machines, 1))
        self._sent = np.zeros(machines)  # share of the cores needed for what was sent since
        self._leaves: list[tuple[float, int, int]] = []  # a heap of what was sent: deadline, number, machine
        self._since: list[dict[int, tuple[int, int]]] = [{} for _ in range(machines)]  # number: time, tenant
        self._count = 0

    def of(self, tenant: int, now_ns: int) -> NDArray[Any]:
        """The headroom of each machine; at most 1, and below 0 where it holds more than can be in time."""
        self._forget_overdue(now_ns)
        left = np.clip(1.0 - (now_ns - self._reported_ns) / self._targets, 0.0, 1.0)
        of: NDArray[Any] = 1.0 - (self._held * left).sum(axis=1) - self._sent - self._debt[:, tenant]
        return of

    def send(self, machine: int, tenant: int, now_ns: int) -> None:
        """A query goes to this machine."""
        self._count += 1
        self._since[machine][self._count] = now_ns, tenant
        self._sent[machine] += self._needs[machine, tenant]
        heappush(self._leaves, (now_ns + self._targets[tenant], self._count, machine))

    def report(self, report: MachineReport) -> None:
        """It stands for everything that was sent before it."""
        machine = report.machine
        self._held[machine] = np.array(report.held) * self._needs[machine]
        self._debt[machine], self._reported_ns[machine] = report.debt, report.time_ns
        since = {number: each for number, each in self._since[machine].items() if each[0] >= report.time_ns}
        self._since[machine] = since
        self._sent[machine] = sum(self._needs[machine, tenant] for _, tenant in since.values())

    def _forget_overdue(self, now_ns: int) -> None:
        while self._leaves and self._leaves[0][0] <= now_ns:
            _, number, machine = heappop(self._leaves)
            if (sent := self._since[machine].pop(number, None)) is not None:
                self._sent[machine] -= self._needs[machine, sent[1]]

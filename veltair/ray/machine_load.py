"""How loaded a machine was, and how many machines a load like that needs; without Ray."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from veltair.ray.daemon_counts import DaemonCounts

AIM = 0.6  # of the cores, busy on average: the rest is for bursts, which one machine alone cannot pass on
BUSY = 0.3  # with less of the cores busy, misses have another cause than too few machines
ALLOWED_BURN = 1.0  # of what a tenant may miss
STEP = 0.25  # more machines, where queries are late though the cores have time
RELIEF = 0.8  # of the load at which so many machines were late: above it they would be late again


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """The load of one machine over the last seconds.

    >>> MachineLoad(core_share=0.5, burn=0.0).burn
    0.0
    """

    core_share: float  # of its cores, in which workers computed
    burn: float  # share of the queries that missed their target, over the share that may: the worst tenant's


class LoadMeter:
    """Makes loads of counts that grow.

    >>> meter = LoadMeter(cores=2)
    >>> meter.since_last(DaemonCounts({}, {}, {}, core_s=5.0, resident=None), now_s=10.0)
    {}
    >>> meter.since_last(DaemonCounts({"a": 100.0}, {"a": 10.0}, {"a": 0.95}, 7.0, None), now_s=12.0)
    {'core_share': 0.5, 'burn': 2.0}
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._last: DaemonCounts | None = None
        self._last_s = 0.0
        self._load: dict[str, float] = {}

    def since_last(self, counts: DaemonCounts, now_s: float) -> dict[str, float]:
        """The load since the counts before these; the same as before for the same counts, nothing for the first."""
        last, last_s = self._last, self._last_s
        if last is counts:
            return self._load
        self._last, self._last_s = counts, now_s
        if last is None or now_s <= last_s:
            return self._load
        core_share = max(counts.core_s - last.core_s, 0.0) / (now_s - last_s) / self._cores  # less where a worker died
        burn = max((_burn(name, last, counts) for name in counts.requests), default=0.0)
        self._load = {"core_share": round(core_share, 6), "burn": round(burn, 6)}
        return self._load


def _burn(tenant: str, last: DaemonCounts, counts: DaemonCounts) -> float:
    requests = counts.requests[tenant] - last.requests.get(tenant, 0.0)
    misses = counts.misses.get(tenant, 0.0) - last.misses.get(tenant, 0.0)
    return 0.0 if requests <= 0 else max(misses, 0.0) / requests / (1 - counts.objective[tenant])


class LatePoint(NamedTuple):
    """When so many machines were late last: `LatePoint(machines=4, load=2.0)`, which is two machines' cores."""

    machines: int
    load: float  # cores in which workers computed, in machines


def late_point(loads: Sequence[MachineLoad], machines: int, last: LatePoint | None) -> LatePoint | None:
    """What is to be remembered for `machines_for`.

    >>> late_point([MachineLoad(0.5, 3.0)] * 4, 4, None)
    LatePoint(machines=4, load=2.0)
    """
    busy, burn = _means(loads)
    return LatePoint(machines, machines * busy) if burn > ALLOWED_BURN and busy >= BUSY else last


def machines_for(loads: Sequence[MachineLoad], machines: int, late: LatePoint | None = None) -> int:
    """How many machines a load needs that so many machines had. One machine less at a time, and none less while the
    fewer ones were late at a load like this: they would be added again.

    >>> machines_for([MachineLoad(0.9, 0.0)] * 4, 4), machines_for([MachineLoad(0.2, 0.0)] * 4, 4)
    (6, 3)
    >>> machines_for([MachineLoad(0.5, 3.0)] * 4, 4), machines_for([MachineLoad(0.1, 3.0)] * 4, 4)
    (5, 4)
    >>> machines_for([MachineLoad(0.4, 0.0)] * 5, 5, late=LatePoint(4, 2.0))
    5
    >>> machines_for([], 4)
    4
    """
    if not loads:
        return machines
    busy, burn = _means(loads)
    wanted = math.ceil(round(machines * busy / AIM, 6))
    if burn > ALLOWED_BURN:
        more = machines + math.ceil(machines * STEP) if busy >= BUSY else machines
        return max(wanted, more)
    fewer = max(wanted, machines - 1, 1)
    again = late is not None and fewer <= late.machines and machines * busy > RELIEF * late.load
    return max(fewer, machines) if again else fewer


def _means(loads: Sequence[MachineLoad]) -> tuple[float, float]:
    """Share of the cores, and burn."""
    count = max(len(loads), 1)
    return sum(load.core_share for load in loads) / count, sum(load.burn for load in loads) / count

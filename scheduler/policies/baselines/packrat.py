"""Packrat (ICML'25) for several tenants: a number of instances with a number of threads each, from solo times."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from operator import attrgetter, itemgetter

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.policies.tenant_queues import TenantQueues
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Start

PERIOD_NS = 250_000_000  # between two looks at the load
SMOOTHING = 0.3  # the last period's share in the rate
CHANGED = 0.2  # of a rate: reason to choose again
BUSY = 0.8  # an instance is planned to be in use for this share of its time


@dataclass(slots=True)
class Pack:
    """What a tenant runs on: `instances` queries side by side, each on `threads` cores.

    ::

        pack = Pack(qos_ns=15_000_000, costs=costs, threads=2, instances=3)
        pack.cores_on(threads=4)  # for the present load
    """

    qos_ns: int
    costs: ProfileCosts  # of the last query
    threads: int = 1
    instances: int = 1
    arrived: int = 0  # in this period
    per_ns: float = 0.0  # queries; smoothed
    planned_per_ns: float = 0.0

    def observe(self, period_ns: int) -> bool:
        """Ends a period; returns whether the load differs from the one that was planned for."""
        rate = self.arrived / period_ns
        self.per_ns += SMOOTHING * (rate - self.per_ns)
        self.arrived = 0
        return abs(self.per_ns - self.planned_per_ns) > CHANGED * max(self.planned_per_ns, 1 / period_ns)

    def time_ns(self, threads: int) -> int:
        return self.costs.time_ns(SOLO, min(threads, self.costs.cores), 0, self.costs.layers)

    def instances_on(self, threads: int) -> int:
        """How many instances keep up with the load."""
        return max(1, ceil(self.per_ns * self.time_ns(threads) / BUSY))

    def cores_on(self, threads: int) -> int:
        return threads * self.instances_on(threads)


class Packrat(Policy):
    """Every tenant is served first come, first served by its instances; the configuration is chosen again when the
    load has changed, which is checked four times a second. Packrat's choice of a batch size has no counterpart: a
    query is its own batch.

    It fails under loads that change faster than a quarter of a second, and under interference, which its solo times
    do not contain.

    >>> Packrat().packs
    {}
    """

    def __init__(self) -> None:
        self.packs: dict[str, Pack] = {}
        self._queues = TenantQueues()
        self._next_look_ns = 0
        self._new = False  # a tenant was met for the first time

    def query_arrived(self, active: ActiveQuery, now_ns: int) -> None:
        self._queues.add(active)
        pack = self.packs.get(active.tenant.name)
        if pack is None:
            pack = self.packs[active.tenant.name] = Pack(active.qos_ns, active.costs)
            self._new = True
            self._next_look_ns = self._next_look_ns or now_ns + PERIOD_NS
        pack.costs = active.costs
        pack.arrived += 1

    def query_ended(self, active: ActiveQuery, now_ns: int) -> None:
        self._queues.discard(active)

    def tenant_removed(self, tenant: str) -> None:
        self._queues.forget(tenant)
        self._new |= self.packs.pop(tenant, None) is not None

    def next_step(self, state: SchedulerState, now_ns: int) -> Start | None:
        self._look(state, now_ns)
        if not state.free:
            return None
        running = dict.fromkeys(self.packs, 0)
        ready = []
        for active in state.in_flight.values():
            if active.run is None:
                ready.append(active)
            else:
                running[active.tenant.name] += 1
        if len(state.in_flight) < state.workers:
            ready += sorted(self._queues.heads(), key=attrgetter("ready_ns"))
        for active in ready:
            pack = self.packs[active.tenant.name]
            cores = min(pack.threads, active.costs.cores)
            if cores <= state.free and running[active.tenant.name] < pack.instances:
                self._queues.discard(active)
                return Start(active, active.next_block(SOLO, active.costs.layers, cores), SOLO)
        return None

    def _look(self, state: SchedulerState, now_ns: int) -> None:
        changed = self._new
        self._new = False
        if now_ns >= self._next_look_ns:
            period_ns = now_ns - self._next_look_ns + PERIOD_NS
            self._next_look_ns = now_ns + PERIOD_NS
            for pack in self.packs.values():
                changed |= pack.observe(period_ns)
        if changed:
            assign_threads(list(self.packs.values()), state.cores)


def assign_threads(packs: list[Pack], cores: int) -> None:
    """Sets threads and instances of every pack for the rates that are expected.

    Each pack first takes the number of threads that holds its QoS and keeps up with its load on the least cores, or
    the fastest one if none holds it. Cores that are left go where a step to more threads gains most, by latency over
    QoS per core, and then to more instances, where they are busiest. More may be asked for than there are: then the
    packs compete.
    """
    counts = [1 << i for i in range(cores.bit_length())]
    for pack in packs:
        pack.planned_per_ns = pack.per_ns
        in_time = [t for t in counts if pack.time_ns(t) <= pack.qos_ns]
        pack.threads = min(in_time, key=pack.cores_on) if in_time else min(counts, key=pack.time_ns)
        pack.instances = pack.instances_on(pack.threads)
    spare = cores - sum(pack.threads * pack.instances for pack in packs)
    while packs and spare > 0:
        steps = [
            ((pack.time_ns(pack.threads) - pack.time_ns(t)) / pack.qos_ns / max(1, more), more, t, pack)
            for pack in packs
            for t in counts
            if t > pack.threads and (more := pack.cores_on(t) - pack.threads * pack.instances) <= spare
        ]
        gain, more, threads, pack = max(steps, key=itemgetter(0), default=(0.0, 0, 0, packs[0]))
        if gain <= 0:
            break
        pack.threads, pack.instances = threads, pack.instances_on(threads)
        spare -= more
    while fitting := [pack for pack in packs if pack.threads <= spare]:
        busiest = max(fitting, key=lambda pack: pack.per_ns * pack.time_ns(pack.threads) / pack.instances)
        busiest.instances += 1
        spare -= busiest.threads

"""PARTIES (ASPLOS'19): every tenant has a partition of the cores, changed core by core by the slack observed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from operator import attrgetter
from statistics import fmean

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.policies.tenant_queues import TenantQueues
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Start
from veltair.types import Tenant

POLL_NS = 100_000_000
POLLS_AVERAGED = 10  # 1 s
TOO_LITTLE, PLENTY = 0.05, 0.2  # of slack, 1 - latency / QoS
POLLS_WATCHED = 5  # after a downsize
POLLS_OF_REST = 100  # after one that hurt


@dataclass(slots=True)
class Partition:
    """The cores of a tenant, and its slack (1 - latency / QoS) at the last polls; latencies in ns.

    >>> from veltair.types import QoSTarget
    >>> partition = Partition(Tenant("vision", "resnet50", QoSTarget(100)), cores=4, latencies_ns=[50])
    >>> partition.measure(oldest_ns=0)
    >>> partition.slacks[-1]
    0.5
    """

    tenant: Tenant
    cores: int
    latencies_ns: list[int] = field(default_factory=list)  # of the queries that finished since the last poll
    slacks: deque[float] = field(default_factory=lambda: deque((1.0,), POLLS_AVERAGED))  # the last one is the present
    fresh: bool = False  # the last poll has seen a query of it: nothing is done on old measurements
    rest: int = 0  # polls until it may be downsized again

    @property
    def slack(self) -> float:
        return fmean(self.slacks)

    @property
    def lacks_cores(self) -> bool:
        return self.fresh and max(self.slacks[-1], self.slack) < TOO_LITTLE

    @property
    def has_spare_time(self) -> bool:
        return self.fresh and min(self.slacks[-1], self.slack) > PLENTY

    def measure(self, oldest_ns: int) -> None:
        """`oldest_ns`: how long its oldest unfinished query is there, which its latency will exceed."""
        seen_ns = oldest_ns
        if self.latencies_ns:
            rank = ceil(self.tenant.qos.percentile * len(self.latencies_ns))
            seen_ns = max(seen_ns, sorted(self.latencies_ns)[rank - 1])
            self.latencies_ns.clear()
        self.fresh = seen_ns > 0
        if self.fresh:
            self.slacks.append(1 - seen_ns / self.tenant.qos.latency_ns)


class Parties(Policy):
    """Within its partition a tenant is served first come, first served, model by model, each query on the fewest cores
    that hold its target, or on all of the partition.

    A poll is due every 100 ms and takes place at the next event after that; each moves one core at most. With more
    tenants than cores a partition is one core that several share.

    It fails under bursts, since a partition follows the load by ten cores a second at most, and idle cores of one
    tenant cannot serve another.

    >>> Parties().partitions
    {}
    """

    def __init__(self) -> None:
        self.partitions: dict[str, Partition] = {}
        self.spare = 0  # cores in no partition
        self._queues = TenantQueues()
        self._next_poll_ns = 0
        self._watched: Partition | None = None  # the one that was downsized last …
        self._watch = 0  # … for this number of further polls

    def query_arrived(self, active: ActiveQuery, now_ns: int) -> None:
        self._queues.add(active)

    def query_ended(self, active: ActiveQuery, now_ns: int) -> None:
        self._queues.discard(active)
        if active.next_layer == active.costs.layers and active.run is None and not active.cancelled:
            self.partitions[active.tenant.name].latencies_ns.append(now_ns - active.query.arrival_ns)

    def tenant_removed(self, tenant: str) -> None:
        self._queues.forget(tenant)
        self.partitions.pop(tenant, None)

    def next_step(self, state: SchedulerState, now_ns: int) -> Start | None:
        if self.partitions.keys() != state.tenants.keys():  # at the start, and where some have come or gone since
            if not (state.waiting or state.in_flight):
                return None
            self._divide(state, now_ns)
        if now_ns >= self._next_poll_ns:
            self._poll(state, now_ns)
        if not state.free:
            return None
        used = dict.fromkeys(self.partitions, 0)
        ready = []
        for active in state.in_flight.values():
            if active.run is None:
                ready.append(active)
            else:
                used[active.tenant.name] += len(active.run.core_set)
        if len(state.in_flight) < state.workers:
            ready += sorted(self._queues.heads(), key=attrgetter("ready_ns"))
        for active in ready:
            tenant = active.tenant
            partition = self.partitions[tenant.name]
            cores = active.costs.cores_for_rest(SOLO, active.next_layer, active.qos_ns)
            cores = min(cores, partition.cores)
            if cores <= min(state.free, partition.cores - used[tenant.name]):
                self._queues.discard(active)
                return Start(active, active.next_block(SOLO, active.costs.layers, cores), SOLO)
        return None

    def _divide(self, state: SchedulerState, now_ns: int) -> None:
        self.partitions, self.spare, self._watched = {}, 0, None
        each, more = divmod(state.cores, len(state.tenants))
        for i, (name, tenant) in enumerate(state.tenants.items()):
            self.partitions[name] = Partition(tenant, max(1, each + (i < more)))
        self._next_poll_ns = now_ns + POLL_NS

    def _poll(self, state: SchedulerState, now_ns: int) -> None:
        polls = 1 + (now_ns - self._next_poll_ns) // POLL_NS
        self._next_poll_ns += polls * POLL_NS
        oldest_ns = dict.fromkeys(self.partitions, 0)
        for active in (*self._queues.heads(), *state.in_flight.values()):
            name = active.tenant.name
            oldest_ns[name] = max(oldest_ns[name], now_ns - active.query.arrival_ns)
        for name, partition in self.partitions.items():
            partition.measure(oldest_ns[name])
            partition.rest = max(0, partition.rest - polls)
        self._watch_downsized(polls)
        short = [partition for partition in self.partitions.values() if partition.lacks_cores]
        if short:
            self._upsize(min(short, key=attrgetter("slack")))
        elif self._watched is None:
            self._downsize()

    def _watch_downsized(self, polls: int) -> None:
        hurt = self._watched
        self._watch -= polls
        if hurt is not None and hurt.slacks[-1] < TOO_LITTLE and self.spare:
            self.spare -= 1
            hurt.cores += 1
            hurt.rest = POLLS_OF_REST
            self._watched = None
        elif self._watch <= 0:
            self._watched = None

    def _upsize(self, worst: Partition) -> None:
        if self.spare:
            self.spare -= 1
        else:
            giving = [partition for partition in self.partitions.values() if partition.cores > 1]
            richest = max(giving, key=attrgetter("slack"), default=worst)
            if richest is worst or richest.lacks_cores:
                return
            richest.cores -= 1
        worst.cores += 1

    def _downsize(self) -> None:
        giving = [p for p in self.partitions.values() if p.has_spare_time and not p.rest and p.cores > 1]
        if giving:
            self._watched = max(giving, key=attrgetter("slack"))
            self._watch = POLLS_WATCHED
            self._watched.cores -= 1
            self.spare += 1

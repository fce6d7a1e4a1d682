"""PARTIES (ASPLOS'19): every tenant has a partition of the cores, moved core by core after the slack that is seen."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from operator import attrgetter
from statistics import fmean

from veltair.scheduler.costs import SOLO
from veltair.scheduler.policies.policy import Policy, Start
from veltair.scheduler.policies.tenant_queues import TenantQueues
from veltair.scheduler.state import Progress, System
from veltair.types import Tenant

POLL_NS = 100_000_000
POLLS_AVERAGED = 10  # 1 s
TOO_LITTLE, PLENTY = 0.05, 0.2  # of slack, 1 - latency / QoS
POLLS_WATCHED = 5  # after a downsize
POLLS_OF_REST = 100  # after one that hurt


@dataclass(slots=True)
class Partition:
    tenant: Tenant
    cores: int
    latencies_ns: list[int] = field(default_factory=list)  # of the queries that finished since the last poll
    slacks: deque[float] = field(default_factory=lambda: deque((1.0,), POLLS_AVERAGED))  # the last one is the present
    fresh: bool = False  # the last poll has seen a query of it: nothing is done on old news
    rest: int = 0  # polls until it may be downsized again

    @property
    def slack(self) -> float:
        return fmean(self.slacks)

    @property
    def short(self) -> bool:
        return self.fresh and max(self.slacks[-1], self.slack) < TOO_LITTLE

    @property
    def rich(self) -> bool:
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
    """Within its partition a tenant is served first come, first served, model by model, each query on the least cores
    that hold its QoS, or on all of the partition.

    A poll is due every 100 ms and is made up for at the next event; each moves one core at most. With more tenants
    than cores a partition is one core that several share.
    """

    def __init__(self) -> None:
        self.partitions: dict[str, Partition] = {}
        self.spare = 0  # cores in no partition
        self._queues = TenantQueues()
        self._next_poll_ns = 0
        self._watched: Partition | None = None  # the one that was downsized last …
        self._watch = 0  # … for so many more polls

    def query_arrived(self, progress: Progress, now_ns: int) -> None:
        self._queues.add(progress)

    def query_ended(self, progress: Progress, now_ns: int) -> None:
        self._queues.discard(progress)
        if progress.next_layer == progress.costs.layers and progress.run is None and not progress.cancelled:
            self.partitions[progress.tenant.name].latencies_ns.append(now_ns - progress.query.arrival_ns)

    def next_step(self, system: System, now_ns: int) -> Start | None:
        if not self.partitions:
            if not system.waiting:
                return None
            self._divide(system, now_ns)
        if now_ns >= self._next_poll_ns:
            self._poll(system, now_ns)
        if not system.free:
            return None
        used = dict.fromkeys(self.partitions, 0)
        ready = []
        for progress in system.in_flight.values():
            if progress.run is None:
                ready.append(progress)
            else:
                used[progress.tenant.name] += len(progress.run.core_set)
        if len(system.in_flight) < system.workers:
            ready += sorted(self._queues.heads(), key=attrgetter("ready_ns"))
        for progress in ready:
            tenant = progress.tenant
            partition = self.partitions[tenant.name]
            cores = progress.costs.cores_for_rest(SOLO, progress.next_layer, progress.qos_ns)
            cores = min(cores, partition.cores)
            if cores <= min(system.free, partition.cores - used[tenant.name]):
                self._queues.discard(progress)
                return Start(progress, progress.block(SOLO, progress.costs.layers, cores), SOLO)
        return None

    def _divide(self, system: System, now_ns: int) -> None:
        each, more = divmod(system.cores, len(system.tenants))
        for i, (name, tenant) in enumerate(system.tenants.items()):
            self.partitions[name] = Partition(tenant, max(1, each + (i < more)))
        self._next_poll_ns = now_ns + POLL_NS

    def _poll(self, system: System, now_ns: int) -> None:
        polls = 1 + (now_ns - self._next_poll_ns) // POLL_NS
        self._next_poll_ns += polls * POLL_NS
        oldest_ns = dict.fromkeys(self.partitions, 0)
        for progress in (*self._queues.heads(), *system.in_flight.values()):
            name = progress.tenant.name
            oldest_ns[name] = max(oldest_ns[name], now_ns - progress.query.arrival_ns)
        for name, partition in self.partitions.items():
            partition.measure(oldest_ns[name])
            partition.rest = max(0, partition.rest - polls)
        self._watch_downsized(polls)
        short = [partition for partition in self.partitions.values() if partition.short]
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
            if richest is worst or richest.short:
                return
            richest.cores -= 1
        worst.cores += 1

    def _downsize(self) -> None:
        giving = [p for p in self.partitions.values() if p.rich and not p.rest and p.cores > 1]
        if giving:
            self._watched = max(giving, key=attrgetter("slack"))
            self._watch = POLLS_WATCHED
            self._watched.cores -= 1
            self.spare += 1

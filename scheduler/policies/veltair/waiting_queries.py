"""The queries that wait under the default policy, by when they must start."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from operator import attrgetter
from typing import TypeAlias

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.policies.tenant_queues import TenantQueues
from veltair.scheduler.policies.veltair.backlog import Backlog
from veltair.scheduler.policies.veltair.correction import Corrections, remaining_ns
from veltair.scheduler.state import SchedulerState
from veltair.types import PRIORITY_LEVELS

_Entry: TypeAlias = tuple[float, int, ActiveQuery]  # latest start, query id
_Levels: TypeAlias = list[list[_Entry]]  # heaps by priority level, from 1 on


class WaitingQueries:
    """Queries that can be in time, in heaps by tenant and priority level, and those that cannot, in order of arrival.

    A tenant's query waits until none of its tenant with a lower number of level can be in time, and is measured by its
    own latest start against other tenants': a request's priority level never puts a tenant before another.

    >>> WaitingQueries(Corrections()).first_late() is None
    True
    """

    def __init__(self, corrections: Corrections) -> None:
        self._corrections = corrections
        self._timely: dict[int, dict[str, _Levels]] = {}  # by the tenants' priority, then by tenant
        self.late = TenantQueues()  # wait, and cannot be in time
        self.batchable = TenantQueues()  # wait, can be in time, and their tenants batch
        self.backlog = Backlog()  # all that wait, and one that is being checked

    def know_priority(self, priority: int) -> None:
        """Heads come in the order in which their priorities were first seen."""
        self._timely.setdefault(priority, {})

    def add_timely(self, active: ActiveQuery, latest_ns: float) -> None:
        """A query that is in time if it starts by `latest_ns`."""
        if active.tenant.batching:
            self.batchable.add(active)
        tenants = self._timely.setdefault(active.tenant.priority, {})
        levels = tenants.get(active.tenant.name)
        if levels is None:
            levels = tenants[active.tenant.name] = [[] for _ in range(PRIORITY_LEVELS)]
        heappush(levels[active.query.priority_level - 1], (latest_ns, active.query.id, active))

    def add_late(self, active: ActiveQuery) -> None:
        """A query that cannot be in time."""
        self.late.add(active)

    def move_to_late(self, active: ActiveQuery) -> None:
        """A query that came first in its heap cannot be in time any more."""
        tenant = active.tenant
        self.late.add(active)
        self.batchable.discard(active)
        heappop(self._timely[tenant.priority][tenant.name][active.query.priority_level - 1])

    def discard(self, active: ActiveQuery) -> None:
        """The query starts or has ended, or both. Its entry in a heap is dropped when it comes first."""
        if self.backlog.discard(active):
            self.late.discard(active)
            self.batchable.discard(active)

    def forget(self, tenant: str) -> None:
        """The tenant is gone; backlog and heaps have nothing of it any more, except for entries to be dropped."""
        self.batchable.forget(tenant)
        self.late.forget(tenant)
        for tenants in self._timely.values():
            tenants.pop(tenant, None)

    def heads(self, state: SchedulerState, now_ns: int) -> Iterator[tuple[int, float, ActiveQuery]]:
        """The query of each priority that must start first: (priority, its latest start as of now, query).

        Behind others of its tenant a query counts only once its latest start has passed.
        """
        for priority, tenants in self._timely.items():
            first: _Entry | None = None
            for levels in tenants.values():
                behind = False
                for queue in levels:
                    if not queue or (head := self._head(state, queue, now_ns)) is None:
                        continue
                    if (not behind or head[0] < now_ns) and (first is None or head < first):
                        first = head
                    behind = True
            if first is not None:
                yield priority, first[0], first[2]

    def first_late(self) -> ActiveQuery | None:
        """The late query that came first, of those that come first in their tenant."""
        return min(self.late.heads(), key=attrgetter("ready_ns"), default=None)

    def latest_starts(self, state: SchedulerState) -> dict[int, float]:
        """Latest starts of the queries that wait and can be in time, by query; O(queries), for tests."""
        levels = [levels for tenants in self._timely.values() for levels in tenants.values()]
        entries = [entry for queues in levels for queue in queues for entry in queue]
        return {id: latest_ns for latest_ns, id, active in entries if state.waiting.get(id) is active}

    def _head(self, state: SchedulerState, queue: list[_Entry], now_ns: int) -> _Entry | None:
        while queue:
            latest_ns, id, active = queue[0]
            if state.waiting.get(id) is not active:  # started, or ended
                heappop(queue)
                continue
            if latest_ns < now_ns:
                renewed = active.due_ns - remaining_ns(state, active, self._corrections[active.tenant.name])
                if renewed > latest_ns:
                    heapreplace(queue, (renewed, id, active))
                    continue
            return queue[0]
        return None

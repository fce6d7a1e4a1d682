"""The queries that wait under the default policy, by when they must start."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from typing import TypeAlias

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.policies.tenant_queues import TenantQueues
from veltair.scheduler.policies.veltair.backlog import Backlog
from veltair.scheduler.policies.veltair.correction import Corrections, remaining_ns
from veltair.scheduler.state import SchedulerState

_Entry: TypeAlias = tuple[float, int, ActiveQuery]  # latest start, query id


class WaitingQueries:
    """Queries that can be in time, in a heap for each priority, and those that cannot, in order of arrival.

    >>> WaitingQueries(Corrections()).first_late() is None
    True
    """

    def __init__(self, corrections: Corrections) -> None:
        self._corrections = corrections
        self._timely: dict[int, list[_Entry]] = {}  # heaps by priority
        self.late: dict[int, ActiveQuery] = {}  # wait, and cannot be in time
        self.batchable = TenantQueues()  # wait, can be in time, and their tenants batch
        self.backlog = Backlog()  # all that wait, and one that is being checked

    def know_priority(self, priority: int) -> None:
        """Heads come in the order in which their priorities were first seen."""
        self._timely.setdefault(priority, [])

    def add_timely(self, active: ActiveQuery, latest_ns: float) -> None:
        """A query that is in time if it starts by `latest_ns`."""
        if active.tenant.batching:
            self.batchable.add(active)
        heappush(self._timely.setdefault(active.tenant.priority, []), (latest_ns, active.query.id, active))

    def add_late(self, active: ActiveQuery) -> None:
        """A query that cannot be in time."""
        self.late[active.query.id] = active

    def move_to_late(self, active: ActiveQuery) -> None:
        """The first query of its priority cannot be in time any more."""
        self.late[active.query.id] = active
        self.batchable.discard(active)
        heappop(self._timely[active.tenant.priority])

    def discard(self, active: ActiveQuery) -> None:
        """The query starts or has ended, or both. Its entry in a heap is dropped when it comes first."""
        if self.backlog.discard(active):
            self.late.pop(active.query.id, None)
            self.batchable.discard(active)

    def heads(self, state: SchedulerState, now_ns: int) -> Iterator[tuple[int, float, ActiveQuery]]:
        """Of each priority the query that must start first: (priority, its latest start as of now, query)."""
        for priority, queue in self._timely.items():
            if (head := self._head(state, queue, now_ns)) is not None:
                yield priority, queue[0][0], head

    def first_late(self) -> ActiveQuery | None:
        """The late query that came first."""
        return next(iter(self.late.values()), None)

    def latest_starts(self, state: SchedulerState) -> dict[int, float]:
        """By query, of those that wait and can be in time; O(queries), for tests."""
        entries = [entry for queue in self._timely.values() for entry in queue]
        return {id: latest_ns for latest_ns, id, active in entries if state.waiting.get(id) is active}

    def _head(self, state: SchedulerState, queue: list[_Entry], now_ns: int) -> ActiveQuery | None:
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
            return active
        return None

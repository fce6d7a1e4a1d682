"""Queries that have not started, in a queue for each tenant: for policies that do not serve them in one order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from veltair.scheduler.active_query import ActiveQuery
from veltair.types import Tenant


class TenantQueues:
    """In order of arrival. Whoever starts a query takes it out."""

    __slots__ = ("_queues", "_samples")

    def __init__(self) -> None:
        self._queues: dict[str, dict[int, ActiveQuery]] = {}
        self._samples: Counter[str] = Counter()

    def add(self, active: ActiveQuery) -> None:
        self._queues.setdefault(active.tenant.name, {})[active.query.id] = active
        self._samples[active.tenant.name] += active.query.batch

    def discard(self, active: ActiveQuery) -> None:
        """Does nothing for a query that is not here."""
        if self._queues.get(active.tenant.name, {}).pop(active.query.id, None):
            self._samples[active.tenant.name] -= active.query.batch

    def samples(self, tenant: Tenant) -> int:
        return self._samples[tenant.name]

    def of(self, tenant: Tenant) -> Iterable[ActiveQuery]:
        return self._queues.get(tenant.name, {}).values()

    def heads(self) -> Iterator[ActiveQuery]:
        """The first query of every tenant that has one."""
        return (next(iter(queue.values())) for queue in self._queues.values() if queue)

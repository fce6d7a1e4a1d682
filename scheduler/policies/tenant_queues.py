"""Queries that have not started, in a queue for each tenant: for policies that do not serve them in one order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from veltair.scheduler.active_query import ActiveQuery
from veltair.types import Tenant


class TenantQueues:
    """Waiting queries in order of arrival. The policy that starts a query takes it out.

    >>> list(TenantQueues().heads())
    []
    """

    __slots__ = ("_queues", "_samples")

    def __init__(self) -> None:
        self._queues: dict[str, dict[int, ActiveQuery]] = {}
        self._samples: Counter[str] = Counter()

    def add(self, active: ActiveQuery) -> None:
        """Puts a query at the end of its tenant's queue."""
        self._queues.setdefault(active.tenant.name, {})[active.query.id] = active
        self._samples[active.tenant.name] += active.query.batch

    def discard(self, active: ActiveQuery) -> None:
        """Takes a query out; does nothing for one that is not here."""
        if self._queues.get(active.tenant.name, {}).pop(active.query.id, None):
            self._samples[active.tenant.name] -= active.query.batch

    def forget(self, tenant: str) -> None:
        """A tenant whose queries have all ended is gone."""
        self._queues.pop(tenant, None)
        self._samples.pop(tenant, None)

    def count_samples(self, tenant: Tenant) -> int:
        """How many samples the tenant's waiting queries have together."""
        return self._samples[tenant.name]

    def queue(self, tenant: Tenant) -> Collection[ActiveQuery]:
        """The tenant's waiting queries."""
        return self._queues.get(tenant.name, {}).values()

    def heads(self) -> Iterator[ActiveQuery]:
        """The first query of every tenant that has one."""
        return (next(iter(queue.values())) for queue in self._queues.values() if queue)

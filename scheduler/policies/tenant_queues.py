"""Queries that have not started, in a queue for each tenant: for policies that do not serve them in one order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import TypeAlias

from veltair.scheduler.active_query import ActiveQuery
from veltair.types import PRIORITY_LEVELS, Tenant

_Levels: TypeAlias = list[dict[int, ActiveQuery]]  # by priority level, from 1 on; then by query, in order of arrival


class TenantQueues:
    """Waiting queries by priority level, those of one level in order of arrival. The policy that starts a query takes
    it out.

    >>> list(TenantQueues().heads())
    []
    """

    __slots__ = ("_queues", "_samples")

    def __init__(self) -> None:
        self._queues: dict[str, _Levels] = {}  # by tenant
        self._samples: Counter[str] = Counter()

    def add(self, active: ActiveQuery) -> None:
        """Puts a query behind those of its tenant and level."""
        query, name = active.query, active.tenant.name
        if name not in self._queues:
            self._queues[name] = [{} for _ in range(PRIORITY_LEVELS)]
        self._queues[name][query.priority_level - 1][query.id] = active
        self._samples[name] += query.batch

    def discard(self, active: ActiveQuery) -> None:
        """Takes a query out; does nothing for one that is not here."""
        query, levels = active.query, self._queues.get(active.tenant.name)
        if levels is not None and levels[query.priority_level - 1].pop(query.id, None) is not None:
            self._samples[active.tenant.name] -= query.batch

    def forget(self, tenant: str) -> None:
        """A tenant whose queries have all ended is gone."""
        self._queues.pop(tenant, None)
        self._samples.pop(tenant, None)

    def count_samples(self, tenant: Tenant) -> int:
        """How many samples the tenant's waiting queries have together."""
        return self._samples[tenant.name]

    def queue(self, tenant: Tenant) -> Iterator[ActiveQuery]:
        """The tenant's waiting queries."""
        return chain.from_iterable([level.values() for level in self._queues.get(tenant.name, ())])

    def heads(self) -> Iterator[ActiveQuery]:
        """The first query of every tenant that has one."""
        for levels in self._queues.values():
            for level in levels:
                if level:
                    yield next(iter(level.values()))
                    break

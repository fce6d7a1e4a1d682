"""Queries that have not started, in a queue for each tenant: for policies that do not serve them in one order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from veltair.scheduler.state import Progress
from veltair.types import Tenant


class TenantQueues:
    """In order of arrival. Whoever starts a query takes it out."""

    __slots__ = ("_queues", "_samples")

    def __init__(self) -> None:
        self._queues: dict[str, dict[int, Progress]] = {}
        self._samples: Counter[str] = Counter()

    def add(self, progress: Progress) -> None:
        self._queues.setdefault(progress.tenant.name, {})[progress.query.id] = progress
        self._samples[progress.tenant.name] += progress.query.batch

    def discard(self, progress: Progress) -> None:
        """Does nothing for a query that is not here."""
        if self._queues.get(progress.tenant.name, {}).pop(progress.query.id, None):
            self._samples[progress.tenant.name] -= progress.query.batch

    def samples(self, tenant: Tenant) -> int:
        return self._samples[tenant.name]

    def of(self, tenant: Tenant) -> Iterable[Progress]:
        return self._queues.get(tenant.name, {}).values()

    def heads(self) -> Iterator[Progress]:
        """The first query of every tenant that has one."""
        return (next(iter(queue.values())) for queue in self._queues.values() if queue)

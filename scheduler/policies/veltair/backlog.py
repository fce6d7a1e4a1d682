"""The work that waits under the default policy, by when it is due."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence
from math import inf

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.policies.veltair.correction import Correction
from veltair.types import State, Tenant


class WaitingKind(State):
    """Waiting queries of one tenant and level with the same number of samples: each needs the same core time.

    ::

        kind = WaitingKind(tenant, level=3, samples=1, cores=2, time_ns=30, due_ns=[100, 250])
        kind.core_ns(Correction(several=1.5))  # 90
    """

    tenant: Tenant
    level: int  # `Query.priority_level`
    samples: int  # of each query
    cores: int  # Avg_C of each
    time_ns: int  # of the whole model alone on so many cores
    due_ns: list[int]  # ascending

    def core_ns(self, correction: Correction) -> float:
        """Cores x time of one of these queries, on the cores that it needs on average."""
        return self.time_ns * correction.ratio(self.cores) * self.cores

    def due_after(self, now_ns: int) -> list[int]:
        """When those are due that are not due yet."""
        due_ns = self.due_ns
        return due_ns if due_ns[0] > now_ns else due_ns[bisect_right(due_ns, now_ns) :]


class Backlog:
    """Counts the waiting queries by kind, so that the work before a query is a sum over kinds and not over queries.

    ::

        backlog.add(active)
        [kind] = backlog.kinds()
        backlog.discard(active)  # True
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, int, int], WaitingKind] = {}  # by tenant, level and samples; each has a query
        self._kind_of: dict[int, WaitingKind] = {}  # by query

    def kinds(self) -> Collection[WaitingKind]:
        return self._kinds.values()

    def kind_of(self, active: ActiveQuery) -> WaitingKind:
        """The kind of a query that waits."""
        return self._kind_of[active.query.id]

    def add(self, active: ActiveQuery) -> None:
        """A query waits from now on."""
        query = active.query
        key = query.tenant, query.priority_level, query.batch
        kind = self._kinds.get(key)
        if kind is None:
            time_ns = active.costs.time_ns(SOLO, active.avg_cores, 0, active.costs.layers)
            kind = WaitingKind(active.tenant, query.priority_level, query.batch, active.avg_cores, time_ns, [])
            self._kinds[key] = kind
        insort(kind.due_ns, active.due_ns)
        self._kind_of[query.id] = kind

    def discard(self, active: ActiveQuery) -> bool:
        """The query waits no longer. Returns whether it did until now."""
        kind = self._kind_of.pop(active.query.id, None)
        if kind is None:
            return False
        del kind.due_ns[bisect_left(kind.due_ns, active.due_ns)]
        if not kind.due_ns:
            del self._kinds[kind.tenant.name, kind.level, kind.samples]
        return True


class SampleCosts:
    """The least core time of one sample of a tenant's queries in a batch that is in time alone on the machine."""

    __slots__ = ("_batches", "_least_ns")

    def __init__(self, by_batch: Sequence[ProfileCosts], within_ns: float) -> None:
        """`by_batch`: the costs of the tenant's model, ascending by batch."""
        self._batches: list[int] = []
        self._least_ns = [inf]  # of the batches before
        for costs in by_batch:
            if costs.least_rest_ns[SOLO][0] > within_ns:
                break
            batch = costs.profile.batch
            self._batches.append(batch)
            self._least_ns.append(min(self._least_ns[-1], costs.rest_on_one_ns[SOLO][0] / batch))

    def least_ns(self, samples: int) -> float:
        """The least core time of a sample in the batches that so many samples fill; infinite if they fill none."""
        return self._least_ns[bisect_right(self._batches, samples)]

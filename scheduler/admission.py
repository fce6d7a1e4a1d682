"""Which queries are taken, and by which profile they are run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import attrgetter

from veltair.errors import ConfigError
from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue
from veltair.scheduler.events import RejectQuery
from veltair.types import Query, Tenant


class Admission:
    """The tenants, and the costs of their models."""

    __slots__ = ("_costs", "_planned_share", "tenants")

    def __init__(self, tenants: Iterable[Tenant], catalogue: ProfileCatalogue, planned_share: float) -> None:
        if not 0 < planned_share <= 1:
            raise ConfigError(f"planned share of the QoS: expected above 0 and at most 1, got {planned_share}")
        self._costs, self._planned_share = catalogue.costs, planned_share
        self.tenants = _by_name(tenants, catalogue)

    def admit(self, query: Query) -> ActiveQuery | RejectQuery:
        """The profile is the one with the smallest batch that holds the query. The tenant must be known."""
        tenant = self.tenants[query.tenant]
        by_batch = self._costs[tenant.model]
        i = bisect_left(by_batch, query.batch, key=attrgetter("profile.batch"))
        if i == len(by_batch):
            most = by_batch[-1].profile.batch
            return RejectQuery(query.id, f"{tenant.model} takes at most {most} items in a query, got {query.batch}")
        costs, share = by_batch[i], self._planned_share
        qos_ns = max(1, round(tenant.qos.latency_ns * share))
        due_ns = query.arrival_ns + min(qos_ns, round((query.deadline_ns - query.arrival_ns) * share))
        return ActiveQuery(query, tenant, costs, qos_ns, due_ns, costs.cores_for_rest(SOLO, 0, qos_ns))


def _by_name(tenants: Iterable[Tenant], catalogue: ProfileCatalogue) -> dict[str, Tenant]:
    by_name: dict[str, Tenant] = {}
    for tenant in tenants:
        if tenant.name in by_name:
            raise ConfigError(f"tenant {tenant.name!r} is given twice")
        if tenant.model not in catalogue.costs:
            raise ConfigError(f"tenant {tenant.name!r}: there is no profile of its model {tenant.model!r}")
        if tenant.qos.latency_ns <= 0:
            raise ConfigError(f"tenant {tenant.name!r}: expected a latency target above 0 ns")
        by_name[tenant.name] = tenant
    return by_name

"""Which queries are admitted at all, and which profile runs them.

A query is refused here only if no profile holds it. The policies refuse what cannot be in time: see
`policies/veltair/admission.py` and `policies/baselines/clockwork.py`.
"""

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

_batch = attrgetter("profile.batch")


class Admission:
    """The tenants and the costs of their models.

    ::

        admission = Admission([tenant], ProfileCatalogue({"resnet50": [profile]}, cores=8), planned_share=0.9)
        admission.admit(Query(1, tenant.name, arrival_ns=0)).due_ns  # 0.9 of the tenant's target
    """

    __slots__ = ("_costs", "_planned_share", "tenants")

    def __init__(self, tenants: Iterable[Tenant], catalogue: ProfileCatalogue, planned_share: float) -> None:
        """`planned_share`: see `Scheduler`. Raises ConfigError."""
        if not 0 < planned_share <= 1:
            raise ConfigError(f"planned share of the QoS: expected above 0 and at most 1, got {planned_share}")
        self._costs, self._planned_share = catalogue.costs, planned_share
        self.tenants = _index_tenants(tenants, catalogue)

    def admit(self, query: Query) -> ActiveQuery | RejectQuery:
        """Picks the profile with the smallest batch that holds the query. Its tenant must be known.

        The query is due by its tenant's target or by its own deadline, whichever comes first.
        """
        tenant = self.tenants[query.tenant]
        by_batch = self._costs[tenant.model]
        i = bisect_left(by_batch, query.batch, key=_batch)
        if i == len(by_batch):
            most = by_batch[-1].profile.batch
            return RejectQuery(query.id, f"{tenant.model} takes at most {most} items in a query, got {query.batch}")
        costs, share = by_batch[i], self._planned_share
        qos_ns = within_ns = max(1, round(tenant.qos.latency_ns * share))
        if query.deadline_ns is not None:
            within_ns = min(qos_ns, round((query.deadline_ns - query.arrival_ns) * share))
        due_ns = query.arrival_ns + within_ns
        return ActiveQuery(query, tenant, costs, qos_ns, due_ns, costs.cores_for_rest(SOLO, 0, qos_ns))


def _index_tenants(tenants: Iterable[Tenant], catalogue: ProfileCatalogue) -> dict[str, Tenant]:
    """By name."""
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

"""Which queries are admitted at all, and which profile runs them.

A query is refused here only if no profile holds it. The policies refuse what cannot be in time: see
`policies/veltair/admission.py` and `policies/baselines/clockwork.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from veltair.errors import ConfigError, RefusalReason
from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.events import RejectQuery
from veltair.types import LayerBlock, Query, Tenant


class _Plan(NamedTuple):
    """What all queries of a tenant have in common."""

    tenant: Tenant
    qos_ns: int  # the target that policies plan with
    batches: list[int]  # that its model was profiled for, ascending
    costs: list[tuple[ProfileCosts, int]]  # of these, each with Avg_C against the target


class Admission:
    """The tenants and the costs of their models.

    ::

        admission = Admission([tenant], ProfileCatalogue({"resnet50": [profile]}, cores=8), planned_share=0.9)
        admission.admit(Query(1, tenant.name, arrival_ns=0)).due_ns  # 0.9 of the tenant's target
    """

    __slots__ = ("_catalogue", "_planned_share", "_plans", "tenants")

    def __init__(self, tenants: Iterable[Tenant], catalogue: ProfileCatalogue, planned_share: float) -> None:
        """`planned_share`: see `Scheduler`. Raises ConfigError."""
        if not 0 < planned_share <= 1:
            raise ConfigError(f"planned share of the QoS: expected above 0 and at most 1, got {planned_share}")
        self._planned_share, self._catalogue = planned_share, catalogue
        self.tenants: dict[str, Tenant] = {}  # by name
        self._plans: dict[str, _Plan] = {}
        for tenant in tenants:
            self.add(tenant)

    def add(self, tenant: Tenant) -> None:
        """Admit its queries. Raises ConfigError, and changes nothing then."""
        if tenant.name in self.tenants:
            raise ConfigError(f"tenant {tenant.name!r} is given twice")
        if tenant.model not in self._catalogue.costs:
            raise ConfigError(f"tenant {tenant.name!r}: there is no profile of its model {tenant.model!r}")
        if tenant.qos.latency_ns <= 0:
            raise ConfigError(f"tenant {tenant.name!r}: expected a latency target above 0 ns")
        self.tenants[tenant.name] = tenant
        self._plans[tenant.name] = _plan(tenant, self._catalogue, self._planned_share)

    def remove(self, name: str) -> None:
        """Forget a tenant whose last query has ended, and its model where no other tenant has it."""
        model = self.tenants.pop(name).model
        del self._plans[name]
        if all(tenant.model != model for tenant in self.tenants.values()):
            self._catalogue.forget(model)

    def admit(self, query: Query) -> ActiveQuery | RejectQuery:
        """Picks the profile with the smallest batch that holds the query. Its tenant must be known.

        The query is due by its tenant's target or by its own deadline, whichever comes first.
        """
        tenant, qos_ns, batches, by_batch = self._plans[query.tenant]
        i = bisect_left(batches, query.batch)
        if i == len(batches):
            return RejectQuery(query.id, RefusalReason.BATCH)
        costs, avg_cores = by_batch[i]
        within_ns = qos_ns
        if query.deadline_ns is not None:
            within_ns = min(qos_ns, round((query.deadline_ns - query.arrival_ns) * self._planned_share))
        return ActiveQuery(query, tenant, costs, qos_ns, query.arrival_ns + within_ns, avg_cores)

    def lone_block(self, tenant: str, batch: int) -> LayerBlock | None:
        """All layers of a query on one core of an idle machine, with their predicted time. None where it is refused, or
        the tenant is not known."""
        if tenant not in self.tenants:
            return None
        admitted = self.admit(Query(0, tenant, arrival_ns=0, batch=batch))
        if isinstance(admitted, RejectQuery):
            return None
        return admitted.next_block(SOLO, admitted.costs.layers, cores=1)


def _plan(tenant: Tenant, catalogue: ProfileCatalogue, planned_share: float) -> _Plan:
    qos_ns, by_batch = max(1, round(tenant.qos.latency_ns * planned_share)), catalogue.costs[tenant.model]
    batches = [costs.profile.batch for costs in by_batch]
    return _Plan(tenant, qos_ns, batches, [(costs, costs.cores_for_rest(SOLO, 0, qos_ns)) for costs in by_batch])

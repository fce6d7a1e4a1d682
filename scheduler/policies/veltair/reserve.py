"""`Reserve`: how much of its spare time the default policy keeps free for each query that it admits."""

from __future__ import annotations

from collections import defaultdict

from veltair.scheduler.active_query import ActiveQuery

MOST = 0.8
STEP = 0.02  # for each batch of admitted queries that ended late
LATE_SHARE = 0.2  # of those that the tenant's percentile lets be late; refusals are the rest


class Reserve:
    """A share of the spare time (target less the time alone) that the work before a query may not take, by tenant.

    Without any, overload fills the queue up to each query's latest start: it starts at the last moment, takes more
    cores than pay, and a slower machine than the profiles know makes it late after all. So the share grows with each
    batch that ends late, and shrinks with the others until so many are late as `LATE_SHARE` says. This is
    how a quantile is tracked step by step; nothing is reserved while nobody is late.

    ::

        reserve.query_done(active, now_ns)
        reserve.spare_ns(active, rest_ns)
    """

    def __init__(self) -> None:
        self._shares: defaultdict[str, float] = defaultdict(float)  # by tenant
        self._last_ns: dict[str, int] = {}  # by tenant, when a query ended

    def query_done(self, active: ActiveQuery, now_ns: int) -> None:
        """An admitted query has run to its end. Those that end at once were one batch, and count as one: its leader,
        which is told of first and is due when the first of them is.
        """
        tenant = active.tenant
        if self._last_ns.get(tenant.name) == now_ns:
            return
        self._last_ns[tenant.name] = now_ns
        late_share = LATE_SHARE * (1 - tenant.qos.percentile)
        change = STEP if now_ns > active.due_ns else -STEP * late_share / (1 - late_share)
        self._shares[tenant.name] = min(max(self._shares[tenant.name] + change, 0.0), MOST)

    def relax(self, tenant: str) -> None:
        """What is known is old: half of it counts."""
        self._shares[tenant] /= 2

    def forget(self, tenant: str) -> None:
        """The tenant is gone."""
        self._shares.pop(tenant, None)
        self._last_ns.pop(tenant, None)

    def spare_ns(self, active: ActiveQuery, rest_ns: float) -> float:
        """What to keep free for a query that has just arrived. `rest_ns`: its time alone."""
        return self._shares[active.tenant.name] * (active.qos_ns - rest_ns)

"""`FairShare`: what the default policy keeps free of tenants that use much, for those that use less and are refused."""

from __future__ import annotations

from collections.abc import Mapping

from veltair.types import State, Tenant

WINDOW = 10  # longest targets: what was used is counted over so long
MOST = 0.75  # so that work of those who use most is taken on too
STEP = 0.03  # for each query of a tenant short of core time that is refused
REFUSED_SHARE = 0.2  # of such a tenant's queries, of those that its percentile lets be late


class _Usage(State):
    """Core time of one owner in the window that runs and in the one before it."""

    weight: int
    priority: int
    used_ns: float = 0.0
    used_before_ns: float = 0.0


class FairShare:
    """A share of the spare time (target less the time alone) that is kept free of tenants that use much.

    Under overload every query would have the same chance to be admitted, so that one who asks five times as much as
    the machine can do takes its cores from all others. A division is max-min fair if nobody is refused what another
    has more of. So a tenant is short if another has used more core time for its weight: when its queries are refused
    for the work before them, less of that work is taken on from those who have used more, until nobody has, or as few
    of its queries are refused as `REFUSED_SHARE` says. Nothing is kept free while nobody who is short is refused, so
    that what some leave goes to the others. Tenants of one owner have one part.

    A query counts by what its blocks take alone on one core, whatever cores they get and however much others slow them
    down, and by the time that the front and the engine need for it.

    ::

        fair.used(tenant, one_core_ns)
        fair.decided(tenant, now_ns, refused=True)
        fair.spare_ns(tenant, spare_ns, now_ns)  # of a query of a tenant that uses more
    """

    def __init__(self) -> None:
        self._usage: dict[str, _Usage] = {}  # by owner
        self._owners: dict[str, str] = {}  # by tenant
        self._window_ns = 0
        self._began_ns = 0
        self._passed = 0.0  # of the window that runs, at the last look
        self._kept: dict[str, float] = {}  # by owner that is short

    def used(self, tenant: Tenant, one_core_ns: float) -> None:
        """A block of the tenant has done work that takes so long on one core."""
        self._of(tenant).used_ns += one_core_ns

    def served(self, spent_ns: Mapping[str, int]) -> None:
        """Queries, those that were refused too, took so much CPU time outside of blocks; by owner."""
        for owner, ns in spent_ns.items():
            if (usage := self._usage.get(owner)) is not None:
                usage.used_ns += ns

    def decided(self, tenant: Tenant, now_ns: int, *, refused: bool) -> None:
        """A query was refused for the work before it, or admitted."""
        owner = _owner(tenant)
        kept = self._kept.get(owner, 0.0)
        if not (kept or refused):
            return
        share = REFUSED_SHARE * (1 - tenant.qos.percentile)
        if not self.is_short(tenant, now_ns):
            kept -= STEP
        elif refused:
            kept += STEP
        else:
            kept -= STEP * share / (1 - share)
        if kept > 0:
            self._kept[owner] = min(kept, MOST)
        else:
            self._kept.pop(owner, None)

    def is_short(self, tenant: Tenant, now_ns: int) -> bool:
        """Whether another has used more for its weight."""
        self._pass_to(now_ns)
        own = self._of(tenant)
        by_weight_ns = self._used_ns(own)
        return any(self._used_ns(each) > by_weight_ns for each in self._usage.values() if each is not own)

    def spare_ns(self, tenant: Tenant, spare_ns: float, now_ns: int) -> float:
        """What to keep free of a query with so much spare time."""
        if not self._kept:
            return 0.0
        self._pass_to(now_ns)
        kept, by_weight_ns = 0.0, self._used_ns(self._of(tenant))
        for name, share in self._kept.items():
            short = self._usage[name]
            if share > kept and short.priority >= tenant.priority and self._used_ns(short) < by_weight_ns:
                kept = share
        return kept * spare_ns

    def forget(self, tenant: str) -> None:
        """The tenant is gone. What others of its owner did is counted from zero."""
        owner = self._owners.pop(tenant, tenant)
        self._usage.pop(owner, None)
        self._kept.pop(owner, None)

    def _used_ns(self, usage: _Usage) -> float:
        """Core time over the last window, divided by the weight; of the window before counts the part that is not
        longer ago.
        """
        return (usage.used_ns + usage.used_before_ns * (1 - self._passed)) / usage.weight

    def _pass_to(self, now_ns: int) -> None:
        passed = (now_ns - self._began_ns) / self._window_ns if self._window_ns else 0.0
        if passed >= 1:
            for usage in self._usage.values():
                usage.used_before_ns = usage.used_ns if passed < 2 else 0.0
                usage.used_ns = 0.0
            self._began_ns, passed = now_ns, 0.0
        self._passed = passed

    def _of(self, tenant: Tenant) -> _Usage:
        self._window_ns = max(self._window_ns, WINDOW * tenant.qos.latency_ns)
        owner = self._owners[tenant.name] = _owner(tenant)
        found = self._usage.get(owner)
        if found is None:
            found = self._usage[owner] = _Usage(tenant.weight, tenant.priority)
        return found


def _owner(tenant: Tenant) -> str:
    return tenant.owner or tenant.name

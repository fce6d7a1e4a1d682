"""`FairShare`: what the default policy keeps free of tenants that use more than their part, for those that ask less."""

from __future__ import annotations

from veltair.types import State, Tenant

WINDOW = 10  # longest targets: what was used and asked for is counted over so long
MOST = 1.0
STEP = 0.03  # for each query of a modest tenant that is refused
REFUSED_SHARE = 0.5  # of a modest tenant's queries, of those that its percentile lets be late


class _Usage(State):
    """Core time of one tenant in the window that runs and in the one before it."""

    weight: int
    priority: int
    used_ns: float = 0.0
    used_before_ns: float = 0.0
    asked_ns: float = 0.0
    asked_before_ns: float = 0.0


class FairShare:
    """A share of the spare time (target less the time alone) that is kept free of tenants beyond their part.

    Under overload every query would have the same chance to be admitted, so that one who asks five times as much as
    the machine can do takes its cores from all others. A tenant's part is its weight's share of the core time that
    all use; tenants of one owner have one part. A tenant that asks for less than its part is modest: when its queries
    are refused for the work before them, less of that work is taken on from those who use more than their part, until
    so many of the modest one's queries are refused as `REFUSED_SHARE` says. Nothing is kept free while nobody modest
    is refused, so that what some leave goes to the others (max-min fairness).

    ::

        fair.arrives(tenant, core_ns, now_ns)
        fair.decided(tenant, refused=True, now_ns)
        fair.spare_ns(tenant, spare_ns, now_ns)  # of a query of a tenant beyond its part
    """

    def __init__(self) -> None:
        self._usage: dict[str, _Usage] = {}  # by owner
        self._owners: dict[str, str] = {}  # by tenant
        self._window_ns = 0
        self._began_ns = 0
        self._passed = 0.0  # of the window that runs, at the last look
        self._kept: dict[str, float] = {}  # by modest owner

    def used(self, tenant: Tenant, core_ns: float) -> None:
        """A block of the tenant has run for so many cores x ns."""
        if (usage := self._usage.get(_owner(tenant))) is not None:
            usage.used_ns += core_ns

    def arrives(self, tenant: Tenant, core_ns: float, now_ns: int) -> None:
        """A query that needs so many cores x ns has arrived while others are there."""
        self._of(tenant, now_ns).asked_ns += core_ns

    def decided(self, tenant: Tenant, now_ns: int, *, refused: bool) -> None:
        """A query was refused for the work before it, or admitted."""
        owner = _owner(tenant)
        kept = self._kept.get(owner, 0.0)
        if len(self._usage) < 2 or not (kept or refused):
            return
        share = REFUSED_SHARE * (1 - tenant.qos.percentile)
        if not self._is_modest(tenant, now_ns):
            kept -= STEP
        elif refused:
            kept += STEP
        else:
            kept -= STEP * share / (1 - share)
        if kept > 0:
            self._kept[owner] = min(kept, MOST)
        else:
            self._kept.pop(owner, None)

    def spare_ns(self, tenant: Tenant, spare_ns: float, now_ns: int) -> float:
        """What to keep free of a query with so much spare time."""
        if not self._kept:
            return 0.0
        usage, owner, kept = self._of(tenant, now_ns), _owner(tenant), 0.0
        for name, share in self._kept.items():
            if share > kept and name != owner and self._usage[name].priority >= tenant.priority:
                kept = share
        beyond = kept and self._sum(usage.used_ns, usage.used_before_ns) > self._part_ns(usage)
        return kept * spare_ns if beyond else 0.0

    def forget(self, tenant: str) -> None:
        """The tenant is gone. What others of its owner did is counted anew."""
        owner = self._owners.pop(tenant, tenant)
        self._usage.pop(owner, None)
        self._kept.pop(owner, None)

    def _is_modest(self, tenant: Tenant, now_ns: int) -> bool:
        usage = self._of(tenant, now_ns)
        return self._sum(usage.asked_ns, usage.asked_before_ns) <= self._part_ns(usage)

    def _part_ns(self, usage: _Usage) -> float:
        """The tenant's part of the core time that those who ask for any have used."""
        asking = [each for each in self._usage.values() if each.asked_ns or each.asked_before_ns or each is usage]
        all_ns = sum([self._sum(each.used_ns, each.used_before_ns) for each in asking])
        return all_ns * usage.weight / sum([each.weight for each in asking])

    def _sum(self, now: float, before: float) -> float:
        """Over the last window: of the one before, the part that is not longer ago."""
        return now + before * (1 - self._passed)

    def _of(self, tenant: Tenant, now_ns: int) -> _Usage:
        window_ns = WINDOW * tenant.qos.latency_ns
        if window_ns > self._window_ns:
            self._window_ns = window_ns
        passed = (now_ns - self._began_ns) / self._window_ns
        if passed >= 1:
            for usage in self._usage.values():
                usage.used_before_ns = usage.used_ns if passed < 2 else 0.0
                usage.asked_before_ns = usage.asked_ns if passed < 2 else 0.0
                usage.used_ns = usage.asked_ns = 0.0
            self._began_ns, passed = now_ns, 0.0
        self._passed = passed
        owner = _owner(tenant)
        found = self._usage.get(owner)
        if found is None:
            found = self._usage[owner] = _Usage(tenant.weight, tenant.priority)
        self._owners[tenant.name] = owner
        return found


def _owner(tenant: Tenant) -> str:
    return tenant.owner or tenant.name

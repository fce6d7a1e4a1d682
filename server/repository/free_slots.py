"""`FreeSlots`: the slots that no query holds, where Python alone reads and writes (`wire/slots.c` for threads)."""

from __future__ import annotations

from veltair.errors import OverloadedError, RefusalReason
from veltair.server.ipc.tenant_share import SharedSlots, TenantShare, TokenBucket

THRESHOLD = 2  # times the slots that are free, for a tenant with the least weight
WANTED_NS = 1_000_000_000  # who was refused a slot so long ago still wants it


class FreeSlots:
    """The slots of the tensor pool that no query holds; at most `slots` are taken over all tenants together.

    Half of them are kept for the tenants, so that none takes all; a tenant may have a bound and a rate of its own. The
    other half is for whoever comes first while nobody else has or wants any of it, and by weight otherwise: each may
    have a multiple of what is free (dynamic thresholds, Choudhury and Hahne 1998), so that who has too many waits until
    the others have theirs, whoever asks more often.

    >>> free = FreeSlots(slots=1, capacity=1)
    >>> free.open(0, TenantShare())
    >>> free.take(tenant=0, now_ns=0)
    0
    >>> free.take(tenant=0, now_ns=1)
    Traceback (most recent call last):
    veltair.errors.OverloadedError: as many queries are held already as this server takes; try later
    """

    def __init__(self, slots: int, capacity: int) -> None:
        self._slots, self._shares = slots, SharedSlots(slots, capacity)
        self._free: dict[int, list[int]] = {}  # by tenant; the last one is taken first
        self._most: dict[int, int] = {}  # of the tenants that are open
        self._rates: dict[int, TokenBucket] = {}
        self._kept = [0] * capacity
        self._common = self._shared = slots  # those that are kept for nobody, and of these the free ones
        self._least = 1  # that is kept for a tenant: the unit of their weights
        self._refused_ns: dict[int, int] = {}  # when each tenant was last refused one of these
        self.taken = 0

    def open(self, tenant: int, share: TenantShare) -> None:
        """Queries of this tenant may come."""
        self._free.setdefault(tenant, list(range(self._slots - 1, -1, -1)))
        self._most[tenant], self._rates[tenant] = share.slots, TokenBucket(share)
        self._keep(self._shares.add(tenant, share))

    def close(self, tenant: int) -> None:
        """No more queries of this tenant begin."""
        self._most.pop(tenant, None)
        self._keep(self._shares.remove(tenant))

    def held(self, tenant: int) -> int:
        """Slots that queries of the tenant hold."""
        return self._slots - len(self._free[tenant]) if tenant in self._free else 0

    def _keep(self, kept: list[int]) -> None:
        self._kept = kept
        self._common = self._slots - sum(kept)
        self._shared = self._slots - sum(max(own, self.held(tenant)) for tenant, own in enumerate(kept))
        self._least = min(filter(None, kept), default=self._slots)

    def take(self, tenant: int, now_ns: int) -> int:
        """A slot of the tenant's region. Raises OverloadedError when there is none for it."""
        held = self.held(tenant)
        own = held < self._kept[tenant]
        if not self._free[tenant] or held >= self._most.get(tenant, 0):
            raise OverloadedError(RefusalReason.SLOTS)
        if not own and not self._may_share(tenant, held, now_ns):
            self._refused_ns[tenant] = now_ns
            raise OverloadedError(RefusalReason.SLOTS)
        if not self._rates[tenant].take(now_ns):
            raise OverloadedError(RefusalReason.RATE)
        self._shared -= not own
        self.taken += 1
        return self._free[tenant].pop()

    def _may_share(self, tenant: int, held: int, now_ns: int) -> bool:
        """Whether the tenant may take one of the slots that are kept for nobody."""
        if self._shared <= 0:
            return False
        own, weight = held - self._kept[tenant], self._kept[tenant] or 1
        others = self._common - self._shared - own
        wanted = any(now_ns - at_ns <= WANTED_NS for other, at_ns in self._refused_ns.items() if other != tenant)
        return (others <= 0 and not wanted) or own * self._least < THRESHOLD * weight * self._shared

    def give_back(self, tenant: int, slot: int) -> None:
        self.taken -= 1
        self._shared += self.held(tenant) > self._kept[tenant]
        self._free[tenant].append(slot)

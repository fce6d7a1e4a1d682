"""`FreeSlots`: the slots that no query holds, where Python alone reads and writes (`wire/slots.c` for threads)."""

from __future__ import annotations

from veltair.errors import OverloadedError, RefusalReason
from veltair.server.ipc.tenant_share import SharedSlots, TenantShare, TokenBucket


class FreeSlots:
    """The slots of the tensor pool that no query holds; at most `slots` are taken over all tenants together.

    Half of them are kept for the tenants, so that none takes all; a tenant may have a bound and a rate of its own.

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
        self._shared = slots  # of those that are kept for nobody, free
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
        self._shared = self._slots - sum(max(own, self.held(tenant)) for tenant, own in enumerate(kept))

    def take(self, tenant: int, now_ns: int) -> int:
        """A slot of the tenant's region. Raises OverloadedError when there is none for it."""
        held = self.held(tenant)
        own = held < self._kept[tenant]
        if not self._free[tenant] or held >= self._most.get(tenant, 0) or (not own and self._shared <= 0):
            raise OverloadedError(RefusalReason.SLOTS)
        if not self._rates[tenant].take(now_ns):
            raise OverloadedError(RefusalReason.RATE)
        self._shared -= not own
        self.taken += 1
        return self._free[tenant].pop()

    def give_back(self, tenant: int, slot: int) -> None:
        self.taken -= 1
        self._shared += self.held(tenant) > self._kept[tenant]
        self._free[tenant].append(slot)

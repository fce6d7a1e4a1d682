"""`TenantShare`: what of the front one tenant may use, so that it costs the others nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SECOND_NS = 1_000_000_000


class TenantShare(msgspec.Struct, frozen=True):
    """A tenant's share of the slots, and of time.

    >>> TenantShare(rate=100.0).burst
    64
    """

    weight: int = 1  # its part of the slots
    slots: int = 65536  # queries held at once, at most
    rate: float = 0.0  # queries a second; 0: any
    burst: int = 64  # queries at once, where it has asked for less before


def kept_slots(shares: Sequence[TenantShare], slots: int) -> list[int]:
    """Half of the slots, by weight: of each tenant those that no other takes.

    >>> kept_slots([TenantShare(), TenantShare(weight=3)], slots=16)
    [2, 6]
    """
    weights = sum(share.weight for share in shares)
    return [slots * share.weight // (2 * weights) for share in shares]


class SharedSlots:
    """The tenants' parts of the slots, while tenants come and go.

    >>> shared = SharedSlots(slots=16, capacity=3)
    >>> shared.add(2, TenantShare())
    [0, 0, 8]
    >>> shared.add(0, TenantShare(weight=3))
    [6, 0, 2]
    """

    def __init__(self, slots: int, capacity: int) -> None:
        self._slots, self._capacity = slots, capacity
        self._shares: dict[int, TenantShare] = {}

    def add(self, tenant: int, share: TenantShare) -> list[int]:
        """Returns what is kept for each tenant now, by number."""
        self._shares[tenant] = share
        return self._kept()

    def remove(self, tenant: int) -> list[int]:
        """Forgets a tenant. Returns what is kept for each tenant now, by number."""
        self._shares.pop(tenant, None)
        return self._kept()

    def _kept(self) -> list[int]:
        kept = [0] * self._capacity
        for tenant, slots in zip(self._shares, kept_slots(list(self._shares.values()), self._slots), strict=True):
            kept[tenant] = slots
        return kept


class TokenBucket:
    """Lets through so many queries a second, and so many at once after a pause.

    >>> bucket = TokenBucket(TenantShare(rate=10.0, burst=2))
    >>> [bucket.take(now_ns) for now_ns in (0, 0, 0, 100_000_000, 100_000_000)]
    [True, True, False, True, False]
    """

    def __init__(self, share: TenantShare) -> None:
        self._rate, self._burst = share.rate, share.burst
        self._tokens, self._at_ns = float(share.burst), 0

    def take(self, now_ns: int) -> bool:
        """Lets a query pass, or not."""
        if not self._rate:
            return True
        elapsed_s = max(0, now_ns - self._at_ns) / SECOND_NS
        self._tokens = min(float(self._burst), self._tokens + self._rate * elapsed_s)
        self._at_ns = max(now_ns, self._at_ns)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

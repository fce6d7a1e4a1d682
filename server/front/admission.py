"""Admission in the front: refuses a request before it reaches the engine.

In the order in which a request passes them:

| refusal | error, HTTP status | where |
| --- | --- | --- |
| body too large | TooLargeError, 413 | `http_body.py`, `protocol/compressed_body.py`, `veltair/grpc/server.py` |
| malformed body | RequestError, 400 | `protocol/http_codec.py`, `protocol/grpc_codec.py` |
| unknown model or tenant | UnknownModelError, 404 | `resolve_tenant` |
| wrong name, dtype, shape or id | RequestError, 400 | `protocol/validation.py` |
| deadline has passed | DeadlineError, 504 | `refuse_past_deadline` |
| shutting down, engine restarting | OverloadedError, 503 | `refuse_while_draining`, `EngineClient` |
| no free slot for the tenant, or its rate is spent | OverloadedError, 503 | `FreeSlots.take` |

After these, the scheduler may reject a query that cannot meet its target: `RejectQuery`, OverloadedError, 503.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from veltair.errors import DeadlineError, OverloadedError, RefusalReason, UnknownModelError
from veltair.server.front.model_metadata import VERSION
from veltair.server.front.served_tenant import ServedTenant
from veltair.server.ipc.tenant_share import TenantShare, TokenBucket, kept_slots


def resolve_tenant(tenants: Mapping[str, ServedTenant], model: str, version: str = "", tenant: str = "") -> str:
    """The name of the tenant that a request is for.

    `model` is a tenant's name, or the name of the model that it serves; `tenant` decides where several serve it.
    Raises UnknownModelError.
    """
    if version not in ("", VERSION):
        raise UnknownModelError(f"model {model!r:.80} has no version {version!r:.20}; it has {VERSION}")
    if tenant:
        if tenant in tenants and model in (tenant, tenants[tenant].manifest.model):
            return tenant
        raise UnknownModelError(f"no tenant {tenant!r:.80} serves model {model!r:.80}")
    if model in tenants:
        return model
    serving = [name for name, served in tenants.items() if served.manifest.model == model]
    if len(serving) == 1:
        return serving[0]
    if serving:
        raise UnknownModelError(f"model {model!r} is served for several tenants; name one")
    raise UnknownModelError(f"unknown model {model!r:.80}")


def refuse_past_deadline(deadline_ns: int | None, now_ns: int) -> None:
    """Raises DeadlineError."""
    if deadline_ns is not None and deadline_ns <= now_ns:
        raise DeadlineError(RefusalReason.LATE_ON_ARRIVAL)


def refuse_while_draining(draining: bool) -> None:
    """Raises OverloadedError."""
    if draining:
        raise OverloadedError(RefusalReason.DRAINING)


class FreeSlots:
    """The slots of the tensor pool that no query holds; at most `slots` are taken over all tenants together.

    Half of them are kept for the tenants, so that none takes all; a tenant may have a bound and a rate of its own.

    >>> free = FreeSlots([TenantShare()], slots=1)
    >>> free.take(tenant=0, now_ns=0)
    0
    >>> free.take(tenant=0, now_ns=1)
    Traceback (most recent call last):
    veltair.errors.OverloadedError: as many queries are held already as this server takes; try later
    """

    def __init__(self, shares: Sequence[TenantShare], slots: int) -> None:
        self._free = [list(range(slots - 1, -1, -1)) for _ in shares]  # the last one is taken first
        self._slots = slots
        self._most = [share.slots for share in shares]
        self._rates = [TokenBucket(share) for share in shares]
        self._kept = kept_slots(shares, slots)
        self._shared = slots - sum(self._kept)  # of the others, those that are free
        self.taken = 0

    def take(self, tenant: int, now_ns: int) -> int:
        """A slot of the tenant's region. Raises OverloadedError when there is none for it."""
        held = self._slots - len(self._free[tenant])
        own = held < self._kept[tenant]
        if held >= self._most[tenant] or (not own and not self._shared):
            raise OverloadedError(RefusalReason.SLOTS)
        if not self._rates[tenant].take(now_ns):
            raise OverloadedError(RefusalReason.RATE)
        self._shared -= not own
        self.taken += 1
        return self._free[tenant].pop()

    def give_back(self, tenant: int, slot: int) -> None:
        self.taken -= 1
        self._shared += self._slots - len(self._free[tenant]) > self._kept[tenant]
        self._free[tenant].append(slot)

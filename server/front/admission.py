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
| no free slot | OverloadedError, 503 | `FreeSlots.take` |

After these, the scheduler may reject a query that cannot meet its target: `RejectQuery`, OverloadedError, 503.
"""

from __future__ import annotations

from collections.abc import Mapping

from veltair.errors import DeadlineError, OverloadedError, UnknownModelError
from veltair.server.front.model_metadata import VERSION
from veltair.server.front.served_tenant import ServedTenant

READ = "the request was read"  # when a deadline had passed
EXPIRED = "the deadline passed before the query was answered"


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
        raise UnknownModelError(f"model {model!r} is served for {', '.join(serving)}; name one as the tenant")
    raise UnknownModelError(f"unknown model {model!r:.80}; served are {', '.join(tenants)}")


def refuse_past_deadline(deadline_ns: int | None, now_ns: int, when: str) -> None:
    """Raises DeadlineError. `when`: what just happened, for the message."""
    if deadline_ns is not None and deadline_ns <= now_ns:
        raise DeadlineError(describe_past_deadline(when))


def describe_past_deadline(when: str) -> str:
    """What a client reads when its deadline passes before its query begins."""
    return f"the deadline had passed when {when}"


def refuse_while_draining(draining: bool) -> None:
    """Raises OverloadedError."""
    if draining:
        raise OverloadedError("the server is shutting down")


def describe_full(slots: int) -> str:
    """What a client reads when all slots are taken."""
    return f"{slots} queries are held already, the most this server takes; try later"


class FreeSlots:
    """The slots of the tensor pool that no query holds; at most `slots` are taken over all tenants together.

    >>> free = FreeSlots(tenants=1, slots=1)
    >>> free.take(tenant=0)
    0
    >>> free.take(tenant=0)
    Traceback (most recent call last):
    veltair.errors.OverloadedError: 1 queries are held already, the most this server takes; try later
    """

    def __init__(self, tenants: int, slots: int) -> None:
        self._free = [list(range(slots - 1, -1, -1)) for _ in range(tenants)]  # the last one is taken first
        self._slots = slots
        self.taken = 0

    def take(self, tenant: int) -> int:
        """A slot of the tenant's region. Raises OverloadedError when none is left."""
        if self.taken == self._slots:
            raise OverloadedError(describe_full(self._slots))
        self.taken += 1
        return self._free[tenant].pop()

    def give_back(self, tenant: int, slot: int) -> None:
        self.taken -= 1
        self._free[tenant].append(slot)

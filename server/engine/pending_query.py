"""`PendingQuery`: a query in the engine, from its arrival to its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from veltair.server.ipc.messages import InferQuery

if TYPE_CHECKING:
    from veltair.server.engine.in_flight_batch import InFlightBatch


@dataclass(slots=True)
class PendingQuery:
    """A query that has not ended: it waits (`batch` is None) or runs in a batch.

    >>> message = InferQuery(query=1, tenant=0, slot=3, batch=1, arrival_ns=0, deadline_ns=10**9)
    >>> PendingQuery(message, "mlp").batch is None
    True
    """

    message: InferQuery
    tenant: str
    batch: InFlightBatch | None = None  # from its first block to its end
    cancelled: bool = False

"""Admission in the front: refuses a request before it reaches the engine.

In the order in which a request passes them:

| refusal | error, HTTP status | where |
| --- | --- | --- |
| body too large | TooLargeError, 413 | `http_body.py`, `protocol/compressed_body.py`, `veltair/grpc/server.py` |
| malformed body | RequestError, 400 | `protocol/http_codec.py`, `protocol/grpc_codec.py` |
| unknown model or tenant | UnknownModelError, 404 | `repository/live_models.py` |
| wrong name, dtype, shape or id | RequestError, 400 | `protocol/validation.py` |
| deadline has passed | DeadlineError, 504 | `refuse_past_deadline` |
| shutting down, engine restarting | OverloadedError, 503 | `refuse_while_draining`, `EngineClient` |
| no free slot for the tenant, or its rate is spent | OverloadedError, 503 | `repository/free_slots.py` |

After these, the scheduler may reject a query that cannot meet its target: `RejectQuery`, OverloadedError, 503.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from veltair.errors import DeadlineError, OverloadedError, RefusalReason
from veltair.server.front.query_result import QueryResult


def refuse_past_deadline(deadline_ns: int | None, now_ns: int) -> None:
    """Raises DeadlineError."""
    if deadline_ns is not None and deadline_ns <= now_ns:
        raise DeadlineError(RefusalReason.LATE_ON_ARRIVAL)


def refuse_while_draining(draining: bool) -> None:
    """Raises OverloadedError."""
    if draining:
        raise OverloadedError(RefusalReason.DRAINING)


class Aborting(Protocol):
    """Who can be told that nobody waits for a query any more: `EngineConnection`."""

    def abort(self, query: int) -> None: ...


def expire(result: asyncio.Future[QueryResult], engine: Aborting, query: int) -> None:
    """The query's deadline has passed: unless it has ended, it ends with DeadlineError."""
    if not result.done():
        result.set_exception(DeadlineError(RefusalReason.DEADLINE))
        engine.abort(query)

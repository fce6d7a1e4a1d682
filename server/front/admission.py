"""Admission in the front: refuses a request before it reaches the engine.

In the order in which a request passes them:

| refusal | error, HTTP status | where |
| --- | --- | --- |
| body too large | TooLargeError, 413 | `http_body.py`, `protocol/compressed_body.py`, `veltair/grpc/server.py` |
| malformed body | RequestError, 400 | `protocol/http_codec.py`, `protocol/grpc_codec.py` |
| unknown model or tenant | UnknownModelError, 404 | `repository/live_models.py` |
| wrong name, dtype, shape or id | RequestError, 400 | `protocol/validation.py` |
| deadline has passed | DeadlineError, 504 | `refuse_past_deadline` |
| shutting down, engine restarting | OverloadedError, 503 | `repository/serving_engine.py`, `EngineClient` |
| no free slot for the tenant, or its rate is spent | OverloadedError, 503 | `repository/free_slots.py` |

After these, the scheduler may reject a query that cannot meet its target: `RejectQuery`, OverloadedError, 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from veltair.errors import DeadlineError, RefusalReason, RequestError
from veltair.server.front.query_result import QueryResult
from veltair.server.protocol.infer_request import Parameter
from veltair.server.protocol.validation import timeout_ns

ROUNDED_SHARE = 100  # clients over gRPC round the time until their deadline up by one part in so many at the most
HELD_UP_NS = 10_000_000  # and on a busy machine what they send waits so long between that and the wire
MOST_SHARE = 10  # of the whole time, one part in so many at the most


def earliest_deadline(parameters: Mapping[str, Parameter], arrival_ns: int, deadline_ns: int | None) -> int | None:
    """Of the call's own deadline and of the request's `timeout`. Raises RequestError.

    >>> earliest_deadline({"timeout": 7}, arrival_ns=1_000, deadline_ns=9_000)
    8000
    """
    timeout = timeout_ns(parameters)
    ends_ns = [end_ns for end_ns in (deadline_ns, timeout and arrival_ns + timeout) if end_ns is not None]
    return min(ends_ns, default=None)


def gives_up_at_deadline(deadline_ns: int | None, arrival_ns: int, now_ns: int) -> bool:
    """Whether a client that leaves now does so because its time is over. Its own clock tells it so, and its reset
    mostly comes before the server's timer.

    >>> gives_up_at_deadline(300_000_000, arrival_ns=0, now_ns=291_000_000)
    True
    >>> gives_up_at_deadline(20_000_000, arrival_ns=0, now_ns=11_000_000)
    False
    """
    if deadline_ns is None:
        return False
    whole_ns = deadline_ns - arrival_ns
    return now_ns >= deadline_ns - min(max(whole_ns // ROUNDED_SHARE, HELD_UP_NS), whole_ns // MOST_SHARE)


def as_counted(
    error: BaseException, parameters: Mapping[str, Parameter], arrival_ns: int, deadline_ns: int | None, now_ns: int
) -> BaseException:
    """What a request that ended with this error is counted as: a miss of its deadline, where its client left at it.

    >>> as_counted(asyncio.CancelledError(), {"timeout": 7}, arrival_ns=1_000, deadline_ns=None, now_ns=8_000)
    DeadlineError('the deadline passed before the query was answered')
    """
    if isinstance(error, asyncio.CancelledError):
        with suppress(RequestError):
            if gives_up_at_deadline(earliest_deadline(parameters, arrival_ns, deadline_ns), arrival_ns, now_ns):
                return DeadlineError(RefusalReason.DEADLINE)
    return error


def refuse_past_deadline(deadline_ns: int | None, now_ns: int) -> None:
    """Raises DeadlineError."""
    if deadline_ns is not None and deadline_ns <= now_ns:
        raise DeadlineError(RefusalReason.LATE_ON_ARRIVAL)


class Aborting(Protocol):
    """Who can be told that nobody waits for a query any more: `EngineConnection`."""

    def abort(self, query: int) -> None: ...


def expire(result: asyncio.Future[QueryResult], engine: Aborting, query: int) -> None:
    """The query's deadline has passed: unless it has ended, it ends with DeadlineError."""
    if not result.done():
        result.set_exception(DeadlineError(RefusalReason.DEADLINE))
        engine.abort(query)

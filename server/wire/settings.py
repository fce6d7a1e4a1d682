"""What the I/O threads are told once: statuses of outcomes and refusals, and the budgets of the configuration."""

from __future__ import annotations

from typing import Any

import grpc

from veltair.config import LimitsConfig
from veltair.errors import DeadlineError, KernelError, OverloadedError, QueryError, RefusalReason, WorkerDiedError
from veltair.server.ipc.lane import OUTCOMES
from veltair.server.ipc.messages import Outcome
from veltair.server.wire.native import Limits, Refusal, Status

# What an outcome of the engine is to the client; the refused ones say why.
_ERRORS: dict[str, type[QueryError]] = {"failed": KernelError, "worker_died": WorkerDiedError}


def error_of(outcome: Outcome, reason: str) -> QueryError:
    """The error of a query that was not done.

    >>> error_of("rejected", "overload"), error_of("failed", "no memory")
    (OverloadedError('the queries before it leave it too little time'), KernelError('no memory'))
    """
    if outcome == "rejected":
        return OverloadedError(RefusalReason(reason))
    if outcome == "cancelled":
        return DeadlineError(RefusalReason.DEADLINE)
    return _ERRORS.get(outcome, QueryError)(reason or outcome)


def status_of(error: type[QueryError]) -> Status:
    """What an error is over each protocol.

    >>> status_of(WorkerDiedError).grpc, status_of(WorkerDiedError).http
    (13, 500)
    """
    return _status(error.grpc_code, error.http_status)


def outcome_statuses() -> Any:
    """The HTTP status of each of OUTCOMES, as `wire_start` gets them."""
    return (Status * len(OUTCOMES))(*(status_of(_ERRORS.get(name, QueryError)) for name in OUTCOMES))


def native_refusals() -> Any:
    """Statuses and texts by `RefusalReason.number`; 0 is none of them."""
    reasons = [Refusal(_status(each.grpc_code, each.http_status), each.text.encode()) for each in RefusalReason]
    internal = Refusal(status_of(QueryError), b"internal error")
    return (Refusal * (1 + len(reasons)))(internal, *reasons)


def _status(grpc_code: str, http_status: int) -> Status:
    return Status(grpc.StatusCode[grpc_code].value[0], http_status)


def native_limits(limits: LimitsConfig, largest_bytes: int) -> Limits:
    """A connection may always hold the largest request."""
    memory = limits.memory_mb << 20
    return Limits(
        memory=memory,
        connection_memory=max(memory // 4, 2 * largest_bytes),
        head_ns=int(limits.head_s * 1e9),
        body_ns=int(limits.body_s * 1e9),
        idle_ns=int(limits.idle_s * 1e9),
        unread_ns=int(limits.unread_s * 1e9),
        connections=limits.connections,
        address_connections=limits.connections_per_address,
        streams=limits.streams,
        header_bytes=limits.header_bytes,
        python_requests=limits.unplanned_requests,
    )

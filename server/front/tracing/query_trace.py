"""`QueryTrace`: what is known of one traced query, once it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from veltair.server.front.tracing.trace_context import TraceContext
from veltair.server.ipc.status_records import BlockRecord


class QueryTrace(NamedTuple):
    """A query of one tenant. Times are on the monotonic clock.

    >>> trace = QueryTrace(TraceContext("http"), "mlp", "mlp", "a7", "overloaded", arrival_ns=5, end_ns=9)
    >>> trace.stage_ns
    ()
    """

    context: TraceContext
    tenant: str
    model: str
    request_id: str  # the client's own text
    outcome: str  # request_counts.OUTCOMES
    arrival_ns: int
    end_ns: int
    reason: str | None = None  # of a refusal or a failure, one of the fixed list: never what a kernel said
    stage_ns: Sequence[int] = ()  # of an answered one: STAGES
    blocks: Sequence[BlockRecord] = ()

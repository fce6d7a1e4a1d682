"""`QueryTraces`: which queries are traced, and the two halves of a trace put together.

A query that Python handles is known whole at its end. Of one that an I/O thread answers, the thread has the stages,
which are taken once a second, and the engine sends the blocks; whichever half comes first waits for the other.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from veltair.errors import FailureReason, QueryError, RefusedError
from veltair.server.front.logs.access_log import ended_rows
from veltair.server.front.request_counts import outcome_of_error
from veltair.server.front.tracing.query_trace import QueryTrace
from veltair.server.front.tracing.trace_context import Protocol, TraceContext, read_traceparent, read_tracestate
from veltair.server.ipc.messages import QueryEnded
from veltair.server.ipc.status_records import BlockRecord
from veltair.server.wire import native
from veltair.server.wire.ended_requests import shown_ids
from veltair.server.wire.thread_traces import ThreadTraces

TAKE_S = 1.0  # between two looks at what I/O threads have traced
PATIENCE_NS = 5_000_000_000  # that a trace waits for its blocks: the engine may have died
MOST_HALVES = 8192  # that wait for their others; the oldest goes


class QueryTraces:
    """Gives whole traces to `add`.

    ::

        traces = QueryTraces(sender.add, ratio=0.01, tenant_of=metrics.tenant_of, model_of=model_of)
        context = traces.begin(traceparents, tracestates, "http")  # None: it is not traced
        traces.add(QueryTrace(context, …))
    """

    def __init__(
        self,
        add: Callable[[QueryTrace], object],
        ratio: float,
        tenant_of: Callable[[int], str | None],
        model_of: Callable[[str], str],
        threads: ThreadTraces | None = None,
    ) -> None:
        """`ratio`: of the queries whose clients say nothing about it. `tenant_of`: by the engine's number."""
        self.add = add
        self._ratio, self._tenant_of, self._model_of, self._threads = ratio, tenant_of, model_of, threads
        self._chance = random.Random()
        self._traces: OrderedDict[int, QueryTrace] = OrderedDict()  # without blocks, by query
        self._blocks: OrderedDict[int, Sequence[BlockRecord]] = OrderedDict()  # without a trace

    @property
    def lost(self) -> int:
        """Traces that I/O threads had no room for."""
        return 0 if self._threads is None else self._threads.lost

    def begin(self, traceparents: Sequence[str], tracestates: Sequence[str], protocol: Protocol) -> TraceContext | None:
        """Whether a query is traced: as its client says, and else by chance. None: it is not."""
        parent = read_traceparent(traceparents) if traceparents else None
        if parent is not None:
            own = parent.trace_id, parent.parent_id, read_tracestate(tracestates)
            return TraceContext(protocol, *own) if parent.sampled else None
        return TraceContext(protocol) if self._ratio and self._chance.random() < self._ratio else None

    def add_error(
        self, context: TraceContext, tenant: str, request_id: str, error: BaseException, arrival_ns: int
    ) -> None:
        """A query that Python has refused, or that failed, or whose client left."""
        outcome = outcome_of_error(error)
        reason: str | None = error.reason if isinstance(error, RefusedError) else None
        if outcome == "failed":
            reason = error.failure if isinstance(error, QueryError) else FailureReason.INTERNAL
        trace = QueryTrace(
            context,
            tenant,
            self._model_of(tenant),
            request_id,
            outcome,
            arrival_ns,
            end_ns=time.monotonic_ns(),
            reason=None if reason is None else str(reason),
        )
        self.add(trace)

    async def follow(self) -> None:
        """Take what I/O threads have traced, again and again."""
        while True:
            await asyncio.sleep(TAKE_S)
            self.take()
            self.settle()

    def take(self) -> None:
        """Take what I/O threads have traced, while their tenants' numbers are those of the engine."""
        for ended in () if self._threads is None else self._threads.take():
            self.add_ended(ended)

    def settle(self, *, last: bool = False) -> None:
        """Give up on blocks that do not come. `last`: none do any more."""
        now_ns = time.monotonic_ns()
        while self._traces and (last or now_ns - next(iter(self._traces.values())).end_ns > PATIENCE_NS):
            self.add(self._traces.popitem(last=False)[1])

    def add_blocks(self, ended: QueryEnded) -> None:
        """The engine's half of a query that came by a lane."""
        if (trace := self._traces.pop(ended.query, None)) is not None:
            self.add(trace._replace(blocks=ended.blocks))
            return
        self._blocks[ended.query] = ended.blocks
        if len(self._blocks) > MOST_HALVES:
            self._blocks.popitem(last=False)

    def add_ended(self, records: NDArray[Any]) -> None:
        """The I/O threads' halves: native.ENDED_TRACE."""
        columns = [records[name].tolist() for name in ("trace", "parent", "query", "protocol")]
        states = zip(records["state"].tolist(), records["state_bytes"].tolist(), strict=True)
        texts = [state[:size].decode("latin-1") for state, size in states]
        rows = zip(*columns, texts, shown_ids(records["id"]), ended_rows(records["ended"]), strict=True)
        for trace, parent, query, protocol, state, request_id, ended in rows:
            number, end_ns, outcome, _, reason, stages, took_ns = ended
            if (tenant := self._tenant_of(number)) is None:  # it is gone
                continue
            spoken: Protocol = "grpc" if protocol == native.GRPC else "http"
            ids = int.from_bytes(trace, "big"), int.from_bytes(parent, "big")
            half = QueryTrace(
                TraceContext(spoken, *ids, read_tracestate([state])),
                tenant,
                self._model_of(tenant),
                request_id,
                outcome,
                arrival_ns=end_ns - took_ns,
                end_ns=end_ns,
                reason=reason,
                stage_ns=stages,
            )
            self._add_half(query, half)

    def _add_half(self, query: int, trace: QueryTrace) -> None:
        """`query`: its number; 0: the engine has never had it."""
        if not query:
            self.add(trace)
        elif (blocks := self._blocks.pop(query, None)) is not None:
            self.add(trace._replace(blocks=blocks))
        else:
            self._traces[query] = trace
            if len(self._traces) > MOST_HALVES:
                self.add(self._traces.popitem(last=False)[1])

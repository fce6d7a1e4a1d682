"""`InFlightQueries`: every query in the engine, and what the scheduler's decisions do to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Set

from veltair.errors import InvariantError
from veltair.profiles.artifact.dynamic_dimension import bucket_name
from veltair.scheduler.events import CancelQuery, Decision, FinishQuery, GrowBlock, RejectQuery, StartBlock, StopBlock
from veltair.server.engine.block_history import BlockHistory
from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.engine.in_flight_batch import InFlightBatch
from veltair.server.engine.pending_query import PendingQuery
from veltair.server.engine.tenant_counters import TenantCounters
from veltair.server.engine.worker_process import WorkerProcess
from veltair.server.engine.worker_supervisor import WorkerSupervisor
from veltair.server.ipc import messages as m
from veltair.server.ipc.channel import Channel
from veltair.types import Query


class InFlightQueries:
    """Holds the queries from their InferQuery to their QueryEnded, and carries out the scheduler's decisions on them.

    Invariants: every InferQuery gets exactly one QueryEnded; a worker holds one batch at most; nobody touches a
    query's slot when its QueryEnded goes out, since the batch's worker has answered or is gone. For that reason a
    cancelled query of a batch ends with the batch.

    ::

        queries.add(infer_query, time.monotonic_ns())
        for decision in scheduler.handle(event):
            queries.carry_out(decision)
    """

    def __init__(
        self,
        front: Channel[m.ToEngine],
        lanes: FrontLanes,
        tenants: Mapping[int, m.TenantSpec],
        supervisor: WorkerSupervisor,
    ) -> None:
        """`tenants`: by number, as they are now."""
        self._front, self._lanes, self._tenants, self._supervisor = front, lanes, tenants, supervisor
        self._queries: dict[int, PendingQuery] = {}  # by id
        self._batches: dict[int, InFlightBatch] = {}  # by id, which is that of its first query
        self._claimed: dict[int, WorkerProcess] = {}  # what runs already, by the query that the scheduler is to start
        self.on_done: Callable[[InFlightBatch], None] = lambda batch: None  # hears of batches that ran to their end
        self.counters: dict[str, TenantCounters] = {}  # by name; those of a tenant that is gone stay
        for spec in tenants.values():
            self.count(spec)
        self.history = BlockHistory()

    def count(self, spec: m.TenantSpec) -> None:
        """Queries of another tenant, or of another version of its model, may come."""
        self.counters.setdefault(spec.name, TenantCounters(spec.qos_ns)).qos_ns = spec.qos_ns

    def has_any_of(self, tenant: int) -> bool:
        """Whether a query of this tenant has not ended; O(queries)."""
        return any(query.message.tenant == tenant for query in self._queries.values())

    @property
    def ids(self) -> Set[int]:
        """Of all queries that have not ended."""
        return self._queries.keys()

    def has(self, query: int) -> bool:
        """Whether it has not ended."""
        return query in self._queries

    def batch(self, query: int) -> InFlightBatch:
        """The batch with the id of this query. Raises KeyError when there is none."""
        return self._batches[query]

    def has_batch(self, query: int) -> bool:
        """Whether a batch with the id of this query runs."""
        return query in self._batches

    def batches(self) -> Collection[InFlightBatch]:
        return self._batches.values()

    def add(self, message: m.InferQuery, taken_ns: int, lane: int | None = None) -> Query:
        """Take in a query that has arrived, by a lane or as a message. Returns it as the scheduler has it."""
        spec = self._tenants[message.tenant]
        self._queries[message.query] = PendingQuery(message, spec.name, spec.version, taken_ns, lane)
        self.counters[spec.name].arrived += 1
        return Query(
            message.query,
            bucket_name(spec.key, message.bucket),
            message.arrival_ns,
            message.deadline_ns,
            message.batch,
            message.priority_level,
        )

    def take_over(self, query: int, worker: WorkerProcess) -> None:
        """The worker runs this query already, which the scheduler will start."""
        self._supervisor.hold(worker, query)
        self._claimed[query] = worker

    def fail_claimed(self, message: m.InferQuery, lane: int, reason: str) -> None:
        """A query of an I/O thread has failed that the scheduler has not been told of."""
        self.add(message, time.monotonic_ns(), lane)
        self._end(self._queries[message.query], "failed", reason)

    def cancel(self, query_id: int) -> bool:
        """Returns whether the scheduler must know: not so if the query has ended or is cancelled already."""
        query = self._queries.get(query_id)
        if query is None or query.cancelled:
            return False
        query.cancelled = True
        if (batch := query.batch) is None:
            self._end(query, "cancelled")
        elif batch.fully_cancelled and batch.order is None:
            self.complete(batch, "cancelled")
        return True

    def carry_out(self, decision: Decision) -> None:
        """Do what the scheduler decided."""
        match decision:
            case StartBlock():
                self._start_block(decision)
            case GrowBlock(query=query, core_set=core_set):
                self._batches[query].worker.cell.set_cores(core_set)
            case CancelQuery(query=query) | StopBlock(query=query):
                self._batches[query].worker.cell.cancel(query)
            case FinishQuery(query=query):
                self._end_as_decided(query, "done")
            case RejectQuery(query=query, reason=reason, for_ns=for_ns):
                if for_ns:
                    message = self._queries[query].message
                    self._lanes.shut(message.tenant, message.batch, for_ns, message.priority_level)
                self._end_as_decided(query, "rejected", reason)

    def complete(self, batch: InFlightBatch, outcome: m.Outcome, reason: str = "") -> None:
        """Answer all queries of the batch, and free its worker before the scheduler can want it for another."""
        del self._batches[batch.id]
        if outcome in ("failed", "worker_died"):
            batch.fail_block()
        batch.order = None
        self._supervisor.release(batch.worker)
        self.history.add(batch.blocks)
        counters = self.counters[batch.tenant]
        counters.predicted_ns += batch.predicted_ns
        counters.measured_ns += batch.measured_ns
        if outcome == "done":
            counters.count_execution(batch.version, batch.members.samples, batch.execute_ns)
            self.on_done(batch)
        for query in batch.queries:
            self._end(query, "cancelled" if query.cancelled else outcome, reason)

    def _start_block(self, order: StartBlock) -> None:
        block = order.block
        batch, claimed = self._batches.get(block.query), self._claimed.pop(block.query, None)
        if batch is None:
            worker = claimed or self._supervisor.acquire(block.query)
            if worker is None:
                raise InvariantError(f"query {block.query} is to start, but no worker is idle")
            queries = [self._queries[query] for query in (block.query, *order.members)]
            batch = InFlightBatch(queries, worker, self._lanes.callers(queries))
            self._batches[block.query] = batch
            self.counters[batch.tenant].batches[len(batch.queries)] += 1
        if claimed is None:
            batch.start_block(order)
        else:
            batch.take_over_block(order)

    def _end_as_decided(self, query_id: int, outcome: m.Outcome, reason: str = "") -> None:
        """End a query, or its whole batch with the first of its queries that the scheduler names."""
        query = self._queries.get(query_id)
        if query is not None and query.batch is not None:
            self.complete(query.batch, outcome, reason)
        elif query is not None:
            self._end(query, outcome, reason)

    def _end(self, query: PendingQuery, outcome: m.Outcome, reason: str = "") -> None:
        told_ns = query.batch.told_ns if query.batch else 0
        ended = query.end(outcome, told_ns or time.monotonic_ns(), reason)
        del self._queries[ended.query]
        self.counters[query.tenant].count_end(query, ended)
        lane, message = query.lane, query.message
        if lane is None or (message.traced and not self._front.backlog):  # of a lane's: its blocks, where they fit
            self._front.send(ended)
        if lane is not None and not told_ns:
            self._lanes.end(lane, ended, message.tenant, message.slot)

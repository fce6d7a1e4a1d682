"""`TenantCounters`: what the engine counts for one tenant."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from veltair.server.engine.pending_query import PendingQuery
from veltair.server.ipc.messages import Outcome, TenantStatus


@dataclass(slots=True)
class TenantCounters:
    """Counts of one tenant since the engine started.

    >>> from veltair.server.ipc.messages import InferQuery
    >>> counters = TenantCounters(qos_ns=10**7, arrived=1)
    >>> query = PendingQuery(InferQuery(1, 0, 0, 1, arrival_ns=0, deadline_ns=10**7), "mlp")
    >>> counters.count_end(query, "rejected", now_ns=5)
    >>> counters.status(waiting=0, running=0).rejected
    1
    """

    qos_ns: int
    arrived: int = 0
    done: int = 0
    within_qos: int = 0
    rejected: int = 0
    cancelled: int = 0
    failed: int = 0
    queue_ns: int = 0
    execute_ns: int = 0
    batches: Counter[int] = field(default_factory=Counter)  # batches started, by their number of queries

    def count_end(self, query: PendingQuery, outcome: Outcome, now_ns: int) -> None:
        """Count a query that has ended."""
        match outcome:
            case "done":
                blocks = query.batch.blocks if query.batch else []
                self.done += 1
                self.within_qos += now_ns - query.message.arrival_ns <= self.qos_ns
                self.queue_ns += blocks[0].begin_ns - query.message.arrival_ns
                self.execute_ns += sum(block.elapsed_ns for block in blocks)
            case "rejected":
                self.rejected += 1
            case "cancelled":
                self.cancelled += 1
            case "failed" | "worker_died":
                self.failed += 1

    def status(self, waiting: int, running: int) -> TenantStatus:
        """The counts as a message, with the queries that wait and run now."""
        return TenantStatus(
            arrived=self.arrived,
            waiting=waiting,
            running=running,
            done=self.done,
            within_qos=self.within_qos,
            rejected=self.rejected,
            cancelled=self.cancelled,
            failed=self.failed,
            queue_ns=self.queue_ns,
            execute_ns=self.execute_ns,
            batches=dict(self.batches),
        )

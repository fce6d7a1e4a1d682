"""`TenantCounters`: what the engine counts for one tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from veltair.server.engine.pending_query import PendingQuery
from veltair.server.ipc.lane import QueryRan
from veltair.server.ipc.messages import QueryEnded
from veltair.server.ipc.status_records import BlockRecord, Executions, TenantStatus

MOST_BLOCK_VERSIONS = 1024  # kept apart before they are summed up


@dataclass(slots=True)
class TenantCounters:
    """Counts of one tenant since the engine started.

    >>> from veltair.server.ipc.messages import InferQuery
    >>> counters = TenantCounters(qos_ns=10**7, arrived=1)
    >>> query = PendingQuery(InferQuery(1, 0, 0, 1, arrival_ns=0, deadline_ns=10**7), "mlp", "1", taken_ns=3)
    >>> counters.count_end(query, query.end("rejected", now_ns=5))
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
    predicted_ns: int = 0  # of blocks that ran as they were planned
    measured_ns: int = 0  # of the same
    batches: Counter[int] = field(default_factory=Counter)  # batches started, by their number of queries
    executions: dict[str, dict[int, Executions]] = field(default_factory=dict)  # by version and number of samples
    versions: Counter[int] = field(default_factory=Counter)  # layers run by code version, without `block_versions`
    block_versions: Counter[tuple[int, ...]] = field(default_factory=Counter)  # blocks run by their layers' versions

    def count_execution(self, version: str, samples: int, execute_ns: int) -> None:
        """Count a batch of so many samples that has run to its end, by this version of the model."""
        own = self.executions.setdefault(version, {})
        own[samples] = own.get(samples, Executions()) + Executions(1, execute_ns)

    def count_end(self, query: PendingQuery, ended: QueryEnded) -> None:
        """Count a query that has ended. The layers of a batch count for each of its queries."""
        match ended.outcome:
            case "done":
                self.done += 1
                self.within_qos += ended.stamps.ended_ns - query.message.arrival_ns <= self.qos_ns
                self.queue_ns += ended.stamps.begin_ns - query.message.arrival_ns
                self.execute_ns += ended.execute_ns
                self._count_blocks(query.blocks)
            case "rejected":
                self.rejected += 1
            case "cancelled":
                self.cancelled += 1
            case "failed" | "worker_died":
                self.failed += 1

    def count_ran(self, version: str, ran: QueryRan, block: BlockRecord) -> None:
        """Count a query that has run by a standing order, in one block."""
        self.arrived += 1
        self.batches[1] += 1
        self.count_execution(version, ran.batch, block.elapsed_ns)
        if ran.left:
            self.cancelled += 1
            return
        self.done += 1
        self.within_qos += ran.ended_ns - ran.arrival_ns <= self.qos_ns
        self.queue_ns += ran.begin_ns - ran.arrival_ns
        self.execute_ns += block.elapsed_ns
        self._count_blocks([block])

    def count_late(self) -> None:
        """Count a query that a worker refused, which was to run by a standing order."""
        self.arrived += 1
        self.rejected += 1

    def _count_blocks(self, blocks: Sequence[BlockRecord]) -> None:
        for block in blocks:
            self.block_versions[block.versions] += 1
        if len(self.block_versions) > MOST_BLOCK_VERSIONS:
            self._sum_versions()

    def _sum_versions(self) -> None:
        for versions, blocks in self.block_versions.items():
            for version in versions:
                self.versions[version] += blocks
        self.block_versions.clear()

    def status(self, waiting: int, running: int) -> TenantStatus:
        """The counts as a message, with the queries that wait and run now."""
        self._sum_versions()
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
            predicted_ns=self.predicted_ns,
            measured_ns=self.measured_ns,
            batches=dict(self.batches),
            executions={version: dict(own) for version, own in self.executions.items()},
            versions=dict(self.versions),
        )

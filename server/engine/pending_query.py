"""Queries on their way through the engine, the batches that they run in, and what is counted of each tenant."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from veltair.scheduler.events import StartBlock
from veltair.server.engine.worker_supervisor import WorkerProcess
from veltair.server.ipc.messages import BlockDone, BlockRecord, Growth, Infer, Outcome, Part, RunningBlock, TenantCount


@dataclass(slots=True)
class Ticket:
    """A query. While it flies, its slot is its batch's."""

    infer: Infer
    tenant: str
    flight: Flight | None = None  # from its first block to its end
    cancelled: bool = False


@dataclass(slots=True)
class Flight:
    """A batch, mostly of one query, from its first block to its end; it bears the id of its first query."""

    tickets: list[Ticket]
    worker: WorkerProcess
    parts: tuple[Part, ...] = field(init=False)
    order: StartBlock | None = None  # the block in execution
    ordered_ns: int = 0  # when
    grown: list[Growth] = field(default_factory=list)  # of the block in execution
    blocks: list[BlockRecord] = field(default_factory=list)
    idle_since_ns: int = 0  # the end of the last block, while the next follows at once; else 0

    def __post_init__(self) -> None:
        self.parts = tuple([Part(ticket.infer.slot, ticket.infer.batch) for ticket in self.tickets])
        for ticket in self.tickets:
            ticket.flight = self

    @property
    def query(self) -> int:
        return self.tickets[0].infer.query

    @property
    def tenant(self) -> str:
        return self.tickets[0].tenant

    @property
    def running(self) -> bool:
        return self.order is not None

    @property
    def forsaken(self) -> bool:
        """Nobody waits for it any more."""
        return all(ticket.cancelled for ticket in self.tickets)

    def record(self, order: StartBlock, done: BlockDone) -> None:
        block = order.block
        self.blocks.append(
            BlockRecord(
                block.query, self.tenant, block.start, done.stop, block.versions[: done.stop - block.start],
                order.core_set, done.begin_ns, done.end_ns, order.conflict, order.level, tuple(self.grown),
                len(self.tickets),
            )
        )  # fmt: skip
        self.order = None
        self.grown.clear()

    def running_block(self, order: StartBlock) -> RunningBlock:
        block = order.block
        return RunningBlock(
            query=block.query,
            tenant=self.tenant,
            worker=self.worker.pid,
            start=block.start,
            stop=block.stop,
            layer=min(max(self.worker.cell.progress, block.start), block.stop - 1),
            versions=block.versions,
            cores=self.grown[-1].cores if self.grown else order.core_set,
            conflict=order.conflict,
            since_ns=self.ordered_ns,
        )


@dataclass(slots=True)
class Tally:
    """Of one tenant since the engine's start."""

    qos_ns: int
    arrived: int = 0
    done: int = 0
    within_qos: int = 0
    rejected: int = 0
    cancelled: int = 0
    failed: int = 0
    queue_ns: int = 0
    execute_ns: int = 0
    batches: Counter[int] = field(default_factory=Counter)  # started, by their number of queries

    def ended(self, ticket: Ticket, outcome: Outcome, now_ns: int) -> None:
        match outcome:
            case "done":
                blocks = ticket.flight.blocks if ticket.flight else []
                self.done += 1
                self.within_qos += now_ns - ticket.infer.arrival_ns <= self.qos_ns
                self.queue_ns += blocks[0].begin_ns - ticket.infer.arrival_ns
                self.execute_ns += sum(block.elapsed_ns for block in blocks)
            case "rejected":
                self.rejected += 1
            case "cancelled":
                self.cancelled += 1
            case "failed" | "worker_died":
                self.failed += 1

    def count(self, waiting: int, running: int) -> TenantCount:
        return TenantCount(
            self.arrived, waiting, running, self.done, self.within_qos,
            self.rejected, self.cancelled, self.failed, self.queue_ns, self.execute_ns, dict(self.batches),
        )  # fmt: skip

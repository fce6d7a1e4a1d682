"""A query on its way through the engine, and what is counted of each tenant."""

from __future__ import annotations

from dataclasses import dataclass, field

from veltair.server.messages import BlockDone, BlockRecord, Growth, Infer, Outcome, RunningBlock, TenantCount
from veltair.server.supervisor import WorkerProcess
from veltair.types import StartBlock


@dataclass(slots=True)
class Ticket:
    """`worker` is held from the first block to the end; `order` is the block in execution."""

    infer: Infer
    tenant: str
    worker: WorkerProcess | None = None
    order: StartBlock | None = None
    ordered_ns: int = 0  # when
    grown: list[Growth] = field(default_factory=list)  # of the block in execution
    blocks: list[BlockRecord] = field(default_factory=list)
    cancelled: bool = False
    idle_since_ns: int = 0  # the end of the last block, while the next follows at once; else 0

    def record(self, order: StartBlock, done: BlockDone) -> None:
        block = order.block
        self.blocks.append(
            BlockRecord(
                block.query, self.tenant, block.start, done.stop, block.versions[: done.stop - block.start],
                order.core_set, done.begin_ns, done.end_ns, order.conflict, order.level, tuple(self.grown),
            )
        )  # fmt: skip
        self.order = None
        self.grown.clear()

    @property
    def running(self) -> bool:
        return self.order is not None

    def running_block(self, order: StartBlock, worker: WorkerProcess) -> RunningBlock:
        block = order.block
        return RunningBlock(
            query=block.query,
            tenant=self.tenant,
            worker=worker.pid,
            start=block.start,
            stop=block.stop,
            layer=min(max(worker.cell.progress, block.start), block.stop - 1),
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

    def ended(self, ticket: Ticket, outcome: Outcome, now_ns: int) -> None:
        match outcome:
            case "done":
                self.done += 1
                self.within_qos += now_ns - ticket.infer.arrival_ns <= self.qos_ns
                self.queue_ns += ticket.blocks[0].begin_ns - ticket.infer.arrival_ns
                self.execute_ns += sum(block.elapsed_ns for block in ticket.blocks)
            case "rejected":
                self.rejected += 1
            case "cancelled":
                self.cancelled += 1
            case "failed" | "worker_died":
                self.failed += 1

    def count(self, waiting: int, running: int) -> TenantCount:
        return TenantCount(
            self.arrived, waiting, running, self.done, self.within_qos,
            self.rejected, self.cancelled, self.failed, self.queue_ns, self.execute_ns,
        )  # fmt: skip

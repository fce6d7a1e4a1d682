"""`InFlightBatch`: queries that run together on one worker, block by block."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec

from veltair.errors import InvariantError
from veltair.scheduler.events import StartBlock
from veltair.server.engine.pending_query import PendingQuery
from veltair.server.engine.worker_process import WorkerProcess
from veltair.server.ipc.block_orders import BlockEnd, Members, Order, bucket_number
from veltair.server.ipc.messages import CoresChanged
from veltair.server.ipc.status_records import BlockRecord, BlockStatus, CoreChange


@dataclass(slots=True)
class InFlightBatch:
    """A batch, mostly of one query, from its first block to its end. It has the id of its first query.

    ::

        batch = InFlightBatch([first, second], worker)
        batch.start_block(start_block)  # a decision of the scheduler
        batch.complete_block(block_end)
    """

    queries: list[PendingQuery]
    worker: WorkerProcess
    callers: bytes = b""  # for whom the worker tells of the end; none: the engine does
    members: Members = field(init=False)
    order: StartBlock | None = None  # the block in execution
    started: StartBlock | None = None  # its last block
    ordered_ns: int = 0  # when
    core_changes: list[CoreChange] = field(default_factory=list)  # of the block in execution
    failed_block: BlockRecord | None = None  # which no other follows
    blocks: list[BlockRecord] = field(default_factory=list)
    predicted_ns: int = 0  # of the blocks that ran as they were planned, by their profile at the level of their start
    measured_ns: int = 0  # what those took
    told_ns: int = 0  # when the worker told the front that the queries are done
    idle_since_ns: int = 0  # the end of the last block, while the next follows at once; else 0

    def __post_init__(self) -> None:
        self.members = Members.of([(query.message.slot, query.message.batch) for query in self.queries])
        for query in self.queries:
            query.batch = self

    @property
    def id(self) -> int:
        return self.queries[0].message.query

    @property
    def tenant(self) -> str:
        return self.queries[0].tenant

    @property
    def version(self) -> str:
        return self.queries[0].version

    @property
    def description(self) -> str:
        """The queries of the batch, for a log."""
        numbers = ", ".join([str(query.message.query) for query in self.queries])
        return f"{'query' if len(self.queries) == 1 else 'queries'} {numbers} of {self.tenant}"

    @property
    def running(self) -> bool:
        return self.order is not None

    @property
    def execute_ns(self) -> int:
        """Execution time of the blocks that have ended."""
        return sum([block.elapsed_ns for block in self.blocks])

    @property
    def fully_cancelled(self) -> bool:
        """Whether nobody waits for any of its queries."""
        return all(query.cancelled for query in self.queries)

    def runs_on(self, worker: WorkerProcess) -> bool:
        """Whether this worker runs a block of it."""
        return self.running and self.worker is worker

    def may_change_cores(self, changed: CoresChanged) -> bool:
        """Whether the block in execution can have found these cores: those that it was given, where it began on others
        as a claim, and more of them each time. Its worker says so, and may say anything."""
        if (order := self.order) is None:
            return False
        block, last = order.block, self.core_changes[-1] if self.core_changes else None
        layer, least = (block.start, len(order.core_set)) if last is None else (last.layer, len(last.cores) + 1)
        fits = len(changed.cores) >= least and set(changed.cores) <= set(self.worker.cell.cores)
        return fits and layer <= changed.layer <= block.stop and 0 <= changed.time_ns <= time.monotonic_ns()

    def change_cores(self, changed: CoresChanged) -> None:
        """Record that the block in execution has moved to other cores."""
        self.core_changes.append(CoreChange(changed.layer, changed.cores, changed.time_ns))

    def start_block(self, order: StartBlock) -> None:
        """Have the worker run it."""
        block, first = order.block, self.queries[0].message
        tenant = bucket_number(first.tenant, first.bucket)
        self.order, self.started, self.ordered_ns = order, order, time.monotonic_ns()
        begin_ns = self.blocks[0].begin_ns if self.blocks else 0
        self.worker.order(
            Order(
                query=block.query,
                tenant=tenant,
                members=self.members,
                start=block.start,
                versions=block.versions,
                cores=order.core_set,
                callers=self.callers,
                begin_ns=begin_ns,
                execute_ns=self.execute_ns,
            )
        )

    def take_over_block(self, order: StartBlock) -> None:
        """The worker runs it already, for an I/O thread that has claimed it."""
        self.order, self.ordered_ns = order, self.queries[0].taken_ns
        self.worker.cell.take_over(order.core_set)

    def may_end(self, end: BlockEnd) -> bool:
        """Whether the block in execution can have ended so. Its worker writes that, and may write anything."""
        if (order := self.order) is None or end.query != self.id:
            return False
        block = order.block
        stops = end.stop == block.stop or (
            block.start <= end.stop < block.stop and self.worker.cell.is_to_stop(self.id)
        )
        return stops and 0 <= end.begin_ns <= end.end_ns <= time.monotonic_ns() >= end.told_ns >= 0

    def complete_block(self, end: BlockEnd) -> None:
        """Record the block in execution, which has ended. Raises InvariantError when there is none."""
        if (order := self.order) is None:
            raise InvariantError(f"a worker finished {end}, which was not ordered")
        block = order.block
        record = self._record(order, end.stop, end.begin_ns, end.end_ns)
        self.blocks.append(record)
        if end.stop == block.stop and len(order.core_set) == block.cores and not self.core_changes:
            self.predicted_ns += block.predicted_ns
            self.measured_ns += record.elapsed_ns
        self.order, self.told_ns = None, end.told_ns
        self.core_changes.clear()

    def fail_block(self) -> None:
        """Record the block in execution, if there is one, which goes no further."""
        if (order := self.order) is not None:
            record = self._record(order, self._layer(order) + 1, self.ordered_ns, time.monotonic_ns())
            self.failed_block = msgspec.structs.replace(record, failed=True)

    def _record(self, order: StartBlock, stop: int, begin_ns: int, end_ns: int) -> BlockRecord:
        """The block in execution, as far as it has come."""
        block = order.block
        return BlockRecord(
            query=block.query,
            tenant=self.tenant,
            start=block.start,
            stop=stop,
            versions=block.versions[: stop - block.start],
            cores=order.core_set,
            begin_ns=begin_ns,
            end_ns=end_ns,
            conflict=order.conflict,
            level=order.level,
            core_changes=tuple(self.core_changes),
            queries=len(self.queries),
        )

    def _layer(self, order: StartBlock) -> int:
        """The one in execution, as its worker says."""
        return min(max(self.worker.cell.progress, order.block.start), order.block.stop - 1)

    def block_status(self, order: StartBlock) -> BlockStatus:
        """The block in execution, as of now."""
        block = order.block
        return BlockStatus(
            query=block.query,
            tenant=self.tenant,
            worker=self.worker.pid,
            start=block.start,
            stop=block.stop,
            layer=self._layer(order),
            versions=block.versions,
            cores=self.core_changes[-1].cores if self.core_changes else order.core_set,
            conflict=order.conflict,
            since_ns=self.ordered_ns,
        )

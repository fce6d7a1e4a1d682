"""`PendingQuery`: a query in the engine, from its arrival to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from veltair.server.ipc.messages import InferQuery, Outcome, QueryEnded
from veltair.server.ipc.stages import EngineStamps
from veltair.server.ipc.status_records import BlockRecord

if TYPE_CHECKING:
    from veltair.server.engine.in_flight_batch import InFlightBatch


@dataclass(slots=True)
class PendingQuery:
    """A query that has not ended: it waits (`batch` is None) or runs in a batch.

    >>> message = InferQuery(query=1, tenant=0, slot=3, batch=1, arrival_ns=0, deadline_ns=10**9)
    >>> query = PendingQuery(message, "mlp", "1", taken_ns=3)
    >>> query.batch is None
    True
    >>> query.end("cancelled", now_ns=5).stamps
    EngineStamps(taken_ns=3, begin_ns=5, end_ns=5, ended_ns=5)
    """

    message: InferQuery
    tenant: str
    version: str  # of the tenant's model
    taken_ns: int  # when the engine took it
    lane: int | None = None  # it came by this lane, not as a message
    batch: InFlightBatch | None = None  # from its first block to its end
    cancelled: bool = False

    @property
    def blocks(self) -> Sequence[BlockRecord]:
        """Those that its batch has run."""
        return self.batch.blocks if self.batch else ()

    def end(self, outcome: Outcome, now_ns: int, reason: str = "") -> QueryEnded:
        """What the front is told of its end now."""
        message, blocks = self.message, self.blocks
        begin_ns, end_ns = (blocks[0].begin_ns, blocks[-1].end_ns) if blocks else (now_ns, now_ns)
        return QueryEnded(
            message.query,
            outcome,
            reason,
            execute_ns=sum([block.elapsed_ns for block in blocks]),
            stamps=EngineStamps(self.taken_ns, begin_ns, end_ns, now_ns),
            blocks=(*blocks, *self._failed_blocks) if message.traced else (),
        )

    @property
    def _failed_blocks(self) -> Sequence[BlockRecord]:
        failed = self.batch.failed_block if self.batch else None
        return () if failed is None else (failed,)

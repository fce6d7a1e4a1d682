"""`LentWorker`: runs what I/O threads of the front order by themselves, until the engine wants the worker back."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from veltair.server.ipc.block_orders import BlockEnd, BlockKey, pack_key
from veltair.server.ipc.channel import Channel, ChannelClosedError
from veltair.server.ipc.done_queries import DoneQueries
from veltair.server.ipc.messages import KernelFailed, ToWorker
from veltair.server.ipc.standing_orders import Claim, StandingOrders
from veltair.server.ipc.worker_cell import ATTEND, WorkerCell

if TYPE_CHECKING:
    from veltair.profiles.runtime.block_runner import BoundBlock
    from veltair.types import CoreSet


class Runs(Protocol):
    """What it has of its `Worker`."""

    def block(self, packed_key: bytes) -> BoundBlock:
        """All layers of a query, bound to its slot."""
        ...

    def run_on(self, cores: CoreSet, query: int, block: BoundBlock) -> tuple[int, bool]:
        """Run it on these cores, and on others as the cell says. Returns the layer reached, and whether it has told
        the engine of other cores."""
        ...


@dataclass(frozen=True, slots=True)
class _Prepared:
    block: BoundBlock
    cores: CoreSet


class LentWorker:
    """Waits for claims and runs them, one at a time.

    ::

        lent = LentWorker(channel, cell, bell, standing, done, worker)
        lent.attend(PATIENCE_NS)  # the order was to attend
    """

    def __init__(
        self,
        channel: Channel[ToWorker],
        cell: WorkerCell,
        bell: int,
        standing: StandingOrders,
        done: DoneQueries,
        runs: Runs,
    ) -> None:
        self._channel, self._cell, self._bell = channel, cell, bell
        self._standing, self._done, self._runs = standing, done, runs

    def attend(self, patience_ns: int) -> None:
        """Run what is claimed until the term of the last order has ended. `patience_ns`: without a claim, before it
        looks whether the engine is still there. Raises ChannelClosedError when it is not."""
        term = self._cell.read_term()
        self._cell.publish_end(BlockEnd(ATTEND, 0, reported=False, begin_ns=0, end_ns=0), self._bell)
        prepared: dict[tuple[int, int], _Prepared] = {}  # by the number of the order and the slot
        while (lane := self._standing.wait(term, patience_ns)) != -1:
            if lane is None:
                if self._channel.is_closed():
                    raise ChannelClosedError
            elif self._run_claim(term, lane, prepared):
                os.eventfd_write(self._bell, 1)
                return

    def _run_claim(self, term: int, lane: int, prepared: dict[tuple[int, int], _Prepared]) -> bool:
        """Returns whether the term has ended with it."""
        claim = self._standing.claim(lane)
        query, done = claim.caller.query, None
        stop, reported, begin_ns = 0, False, time.monotonic_ns()
        try:
            ready = prepared.get((claim.order, claim.slot))
            if ready is None:
                ready = prepared[claim.order, claim.slot] = self._prepare(claim)
            begin_ns = time.monotonic_ns()
            stop, reported = self._runs.run_on(ready.cores, query, ready.block)
            done = self._done if stop == ready.block.stop else None
        except Exception as error:  # whatever a kernel raises costs this query alone
            who = claim.caller.lane, claim.caller.place
            self._channel.send(KernelFailed(query, f"{type(error).__name__}: {error}", claimed_by=who))
        end = BlockEnd(query, stop, reported, begin_ns, time.monotonic_ns())
        return self._standing.end(term, lane, end, done)

    def _prepare(self, claim: Claim) -> _Prepared:
        order = self._standing.order(claim.order)
        key = BlockKey(order.tenant, 0, claim.slot, order.samples, order.versions)
        return _Prepared(self._runs.block(pack_key(key)), order.cores)

"""`BlockWatchdog`: finds blocks that take far longer than their profile says: the worker hangs, or is stopped.

On a machine with too little time for everybody a block may take as long, and its worker only waits for a core. So after
half of the time that a block has, its worker is watched: it hangs if it then stands still for the other half, or uses
its cores for so long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from veltair.machine.standstill import Standstill
from veltair.server.engine.in_flight_batch import InFlightBatch

MOST_TIMES = 10  # the time that a block was predicted to take
PERIOD_NS = 250_000_000


class BlockWatchdog:
    """Looks at the blocks in execution from time to time.

    ::

        watchdog = BlockWatchdog(least_ns=10_000_000_000)
        for batch in watchdog.find_hung(batches, time.monotonic_ns()):
            …  # its worker has to go
    """

    def __init__(self, least_ns: int) -> None:
        """`least_ns`: a block has this long, however short it was predicted."""
        self._least_ns = least_ns
        self._next_ns = 0
        self._watched: dict[tuple[int, int], Standstill] = {}  # by worker and start of the block

    def find_hung(self, batches: Collection[InFlightBatch], now_ns: int) -> list[InFlightBatch]:
        """Those whose block has had its time; none before the next look is due."""
        if now_ns < self._next_ns:
            return []
        self._next_ns = now_ns + PERIOD_NS
        before, self._watched = self._watched, {}
        return [batch for batch in batches if self._is_hung(batch, now_ns, before)]

    def _is_hung(self, batch: InFlightBatch, now_ns: int, before: Mapping[tuple[int, int], Standstill]) -> bool:
        if (order := batch.order) is None:
            return False
        half_ns = max(self._least_ns, MOST_TIMES * order.block.predicted_ns) // 2
        if now_ns - batch.ordered_ns <= half_ns:
            return False
        key = batch.worker.pid, batch.ordered_ns
        watched = self._watched[key] = before.get(key) or Standstill(batch.worker.pid)
        return watched.hangs(now_ns, half_ns, order.block.cores)

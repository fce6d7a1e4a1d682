"""`BlockWatchdog`: finds blocks that take far longer than their profile says: the worker hangs, or is stopped."""

from __future__ import annotations

from collections.abc import Collection

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

    def seconds_to_look(self, batches: Collection[InFlightBatch], now_ns: int) -> float | None:
        """Until the next look is due; None while nothing runs."""
        return max(0.0, (self._next_ns - now_ns) / 1e9) if batches else None

    def find_hung(self, batches: Collection[InFlightBatch], now_ns: int) -> list[InFlightBatch]:
        """Those whose block has had its time; none before the next look is due."""
        if now_ns < self._next_ns:
            return []
        self._next_ns = now_ns + PERIOD_NS
        return [batch for batch in batches if self._is_hung(batch, now_ns)]

    def _is_hung(self, batch: InFlightBatch, now_ns: int) -> bool:
        if (order := batch.order) is None:
            return False
        return now_ns - batch.ordered_ns > max(self._least_ns, MOST_TIMES * order.block.predicted_ns)

"""`CounterSampling`: reads the L3 counters at even intervals, where the machine has any."""

from __future__ import annotations

import logging

from veltair.machine.hardware_counters import L3Counters, open_counters
from veltair.scheduler.events import CountersSampled
from veltair.types import CoreSet

logger = logging.getLogger("veltair.engine")

SAMPLE_NS = 10_000_000  # between two readings


class CounterSampling:
    """The engine's loop asks it what is due; no method blocks::

    sampling = CounterSampling(cores)
    if (event := sampling.sample_if_due(time.monotonic_ns())) is not None:
        decisions = scheduler.handle(event)
    """

    def __init__(self, cores: CoreSet, *, wanted: bool = False) -> None:
        """`wanted`: the level is to come from counters, so that it is said where there are none."""
        self._counters: L3Counters | None = open_counters(cores)
        if wanted and self._counters is None:
            logger.warning("counter_model is not used: no L3 counters; the level comes from observed slowdown")
        self._next_ns = 0

    @property
    def available(self) -> bool:
        """Whether there are counters to read."""
        return self._counters is not None

    def sample_if_due(self, now_ns: int) -> CountersSampled | None:
        """What was counted since the last reading; None when the next one is not due."""
        if self._counters is None or now_ns < self._next_ns:
            return None
        self._next_ns = now_ns + SAMPLE_NS
        return CountersSampled(now_ns, self._counters.sample(now_ns))

    def seconds_to_sample(self, now_ns: int) -> float | None:
        """The time until a reading is due; None when there are no counters."""
        return None if self._counters is None else max(0.0, (self._next_ns - now_ns) / 1e9)

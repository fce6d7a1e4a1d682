"""`RecentWindow`: the latest requests of one tenant, for quantiles and charts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SECOND_NS = 1_000_000_000
CAPACITY = 1 << 14  # requests kept for each tenant; at higher rates a window is cut to these

OK, REFUSED, FAILED, LIMITED = range(4)  # how a request ended; limited: its tenant asks more often than its rate allows


@dataclass(frozen=True, slots=True)
class WindowStats:
    """One span of time. Quantiles are those of answered requests, None without any.

    >>> RecentWindow(target_ns=10**7, percentile=0.95).stats(0, SECOND_NS).p95_ms is None
    True
    """

    offered_qps: float
    qps: float  # answered
    refused_qps: float
    failed_qps: float
    qos_rate: float | None  # share of the offered requests, without limited ones, answered within the target
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    tail_ms: float | None  # at the tenant's own percentile: above the target exactly when the QoS is missed


class RecentWindow:
    """A ring of the last requests of one tenant: when each ended, its latency, and how it ended.

    >>> window = RecentWindow(target_ns=10_000_000, percentile=0.95)
    >>> window.add(end_ns=SECOND_NS, latency_ns=4_000_000, outcome=OK)
    >>> window.add(end_ns=SECOND_NS, latency_ns=0, outcome=REFUSED)
    >>> stats = window.stats(start_ns=0, stop_ns=2 * SECOND_NS)
    >>> stats.qps, stats.qos_rate, stats.p50_ms
    (0.5, 0.5, 4.0)
    """

    def __init__(self, target_ns: int, percentile: float) -> None:
        self.aim_at(target_ns, percentile)
        self._end = np.zeros(CAPACITY, np.int64)
        self._latency = np.zeros(CAPACITY, np.int64)
        self._outcome = np.zeros(CAPACITY, np.int8)
        self._count = 0

    def aim_at(self, target_ns: int, percentile: float) -> None:
        """Judge the requests by this target, also those that are in the window already."""
        self._target_ns = target_ns
        self.percentile = percentile
        self._quantiles = (0.5, 0.95, 0.99, percentile)

    def add(self, end_ns: int, latency_ns: int, outcome: int) -> None:
        at = self._count % CAPACITY
        self._end[at] = end_ns
        self._latency[at] = latency_ns
        self._outcome[at] = outcome
        self._count += 1

    def add_batch(self, end_ns: NDArray[np.int64], latency_ns: NDArray[np.int64], outcome: NDArray[np.int8]) -> None:
        """Do the same as `add` for one request after the other."""
        stop = self._count + len(end_ns)
        first = max(self._count, stop - CAPACITY)  # those before it would be overwritten
        at = np.arange(first, stop) % CAPACITY
        skipped = first - self._count
        self._end[at] = end_ns[skipped:]
        self._latency[at] = latency_ns[skipped:]
        self._outcome[at] = outcome[skipped:]
        self._count = stop

    def stats(self, start_ns: int, stop_ns: int) -> WindowStats:
        """Statistics of requests that ended in [start, stop). If the ring has overwritten part of the span, from its
        oldest.
        """
        filled = min(self._count, CAPACITY)
        end = self._end[:filled]
        chosen = (end >= start_ns) & (end < stop_ns)
        if self._count > CAPACITY:
            start_ns = max(start_ns, int(end.min()))
        span_s = max(stop_ns - start_ns, 1) / SECOND_NS
        latency, outcome = self._latency[:filled][chosen], self._outcome[:filled][chosen]
        answered = latency[outcome == OK]
        offered, limited = len(latency), int((outcome == LIMITED).sum())
        judged = offered - limited
        quantiles: list[float | None] = [None, None, None, None]
        if len(answered):
            quantiles = [float(q) / 1e6 for q in np.quantile(answered, self._quantiles)]
        return WindowStats(
            offered_qps=offered / span_s,
            qps=len(answered) / span_s,
            refused_qps=int((outcome == REFUSED).sum() + limited) / span_s,
            failed_qps=int((outcome == FAILED).sum()) / span_s,
            qos_rate=int((answered <= self._target_ns).sum()) / judged if judged else None,
            p50_ms=quantiles[0],
            p95_ms=quantiles[1],
            p99_ms=quantiles[2],
            tail_ms=quantiles[3],
        )

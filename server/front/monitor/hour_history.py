"""`HourHistory`: each tenant's rates over the last hour, in steps of ten seconds, and how fast it spends its misses."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from veltair.server.front.recent_window import SECOND_NS
from veltair.server.front.request_counts import RequestCounts

STEP_S = 10
KEPT_STEPS = 360  # an hour
BURN_SPANS_S = {"5m": 300, "1h": 3600}


class TenantStep(NamedTuple):
    """One tenant in one step: `TenantStep(requests=900, misses=4, qps=9.0, refused_qps=0.0, tail_ms=7.5)`."""

    requests: int  # so far, of those that count for its target
    misses: int  # so far
    qps: float
    refused_qps: float
    tail_ms: float | None  # at the tenant's own percentile; None: nothing was answered


class HourHistory:
    """A step is taken by a task of the front, whether anybody looks or not, so it is there after an engine restarted.

    ::

        history = HourHistory(metrics)
        recording = asyncio.create_task(history.record())
        history.burn("resnet50", "1h")
    """

    def __init__(self, tenants: Mapping[str, RequestCounts], refresh: Callable[[], None] = lambda: None) -> None:
        """`refresh`: counts what has ended without Python."""
        self._tenants, self._refresh = tenants, refresh
        self._steps: deque[tuple[float, dict[str, TenantStep]]] = deque(maxlen=KEPT_STEPS + 1)
        self._times: deque[float] = deque(maxlen=KEPT_STEPS + 1)  # monotonic, of each
        self.take_step()

    async def record(self) -> None:
        while True:
            await asyncio.sleep(STEP_S)
            self.take_step()

    def take_step(self) -> None:
        """The last STEP_S, ending now."""
        self._refresh()
        now_ns, steps = time.monotonic_ns(), {}
        for name, counts in self._tenants.items():
            recent = counts.window.stats(now_ns - STEP_S * SECOND_NS, now_ns + 1)
            requests, misses = counts.slo_totals()
            steps[name] = TenantStep(requests, misses, recent.qps, recent.refused_qps, recent.tail_ms)
        self._steps.append((time.time(), steps))
        self._times.append(now_ns / SECOND_NS)

    def burn(self, tenant: str, span: str) -> float | None:
        """How many times faster than its percentile allows a tenant missed its target over a span of BURN_SPANS_S,
        or since the daemon started; 1.0 spends exactly what is allowed. None: nothing was asked.
        """
        counts = self._tenants[tenant]
        at = bisect_left(self._times, time.monotonic() - BURN_SPANS_S[span])
        before = self._steps[at][1].get(tenant) if at < len(self._steps) else None
        requests, misses = counts.slo_totals()
        if before is not None:
            requests, misses = requests - before.requests, misses - before.misses
        return misses / requests / max(1.0 - counts.window.percentile, 1e-9) if requests else None

    def charts(self) -> dict[str, Any]:
        """The steps as lists: `at_s` (wall clock), and by tenant `qps` and `tail_ms`; None where it was not served."""
        steps = list(self._steps)[1:]  # nothing had happened before the first
        of_tenants = {}
        for name in self._tenants:
            rows = [step.get(name) for _, step in steps]
            of_tenants[name] = {
                "qps": [None if row is None else round(row.qps, 2) for row in rows],
                "tail_ms": [None if row is None or row.tail_ms is None else round(row.tail_ms, 3) for row in rows],
            }
        return {"at_s": [round(at_s, 1) for at_s, _ in steps], "tenants": of_tenants, "step_s": STEP_S}

"""A line in the log while requests are refused: every ten seconds one a tenant, however many they are."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from veltair.server.front.metrics import Metrics
from veltair.server.ipc.logs.json_lines import event

SPAN_S = 10

_log = logging.getLogger("veltair.server")


class RefusalBursts:
    """Compares counts of refusals with those of ten seconds ago.

    ::

        asyncio.create_task(RefusalBursts(metrics).follow())
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._before: dict[str, Counter[str]] = {}
        self._told_of_early = Counter[str]()

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(SPAN_S)
            self.look()

    def look(self) -> None:
        """Log what was refused since the last look."""
        self._metrics.refresh()
        for name, counts in self._metrics.tenants.items():
            now = Counter(counts.refusals)
            self._tell(name, now - self._before.get(name, Counter()))
            self._before[name] = now
        early = Counter(self._metrics.early_refusals())
        self._tell(None, early - self._told_of_early)
        self._told_of_early = early

    def _tell(self, tenant: str | None, refused: Counter[str]) -> None:
        if not refused:
            return
        reasons = {str(reason): count for reason, count in refused.most_common()}
        told = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
        subject = "requests of no known tenant" if tenant is None else f"requests of {tenant}"
        extra = event("refusals", tenant=tenant, refused=refused.total(), reasons=reasons)
        _log.warning("%d %s were refused within %d s: %s", refused.total(), subject, SPAN_S, told, extra=extra)

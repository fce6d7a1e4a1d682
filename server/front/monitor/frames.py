"""`Frames`: what a viewer gets once a second: every tenant, the engine, and the blocks and events since the last."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from veltair.server.front.metrics import Metrics
from veltair.server.front.monitor.core_use import BUSY_SPAN_NS, busy_shares, packed_block
from veltair.server.front.monitor.hour_history import BURN_SPANS_S
from veltair.server.front.recent_window import SECOND_NS
from veltair.server.front.request_counts import RequestCounts, StageTotals
from veltair.server.front.snapshot import Snapshot
from veltair.server.ipc.messages import EngineStatus
from veltair.server.ipc.status_records import BlockRecord
from veltair.types import Machine

RECENT_NS = 10 * SECOND_NS  # the span of the table's rates and quantiles
RECENT_FRAMES = 11  # means of stages and rates of reasons are those between the first and the last: 10 s
BUSY_LAG_NS = SECOND_NS // 4  # blocks are known when their query ends: the busy second ends a little earlier
AGAIN_EVENTS = 20
MAX_BLOCKS = 1500  # in one event; the newest are kept


class TenantTotals(NamedTuple):
    """What a tenant's requests had come to when a frame was made."""

    stages: StageTotals
    refusals: Mapping[str, int]
    failures: Mapping[str, int]


class Frames:
    """Made one after the other while somebody looks.

    ::

        frames = Frames(metrics, machine)
        event = frames.make(time.monotonic_ns(), snapshot)
    """

    def __init__(self, metrics: Metrics, machine: Machine) -> None:
        self._metrics, self._machine = metrics, machine
        self.cursor = 0  # blocks up to here were sent
        # Events up to here were sent. Some are sent twice, so that none falls between a viewer's first event and this.
        self._revision = max(0, metrics.events.revision - AGAIN_EVENTS) if metrics.events else 0
        self._before: EngineStatus | None = None
        self._recent: list[BlockRecord] = []  # blocks that ended within the last second
        self._totals: deque[tuple[int, dict[str, TenantTotals], dict[str, int]]] = deque(maxlen=RECENT_FRAMES)

    def make(self, now_ns: int, snapshot: Snapshot | None) -> dict[str, Any]:
        """One frame. `snapshot`: None while the engine does not answer."""
        metrics = self._metrics
        metrics.refresh()
        early = metrics.early_refusals()
        self._totals.append((now_ns, {name: _totals(counts) for name, counts in metrics.tenants.items()}, early))
        status = snapshot.status if snapshot else None
        since_s = max((now_ns - self._totals[0][0]) / SECOND_NS, 1e-3)
        frame: dict[str, Any] = {
            "now_ms": now_ns / 1e6,
            "tenants": [self._tenant(name, now_ns, since_s, snapshot) for name in metrics.tenants],
            "early": _rates(early, self._totals[0][2], since_s),
            "events": self._events(),
            "engine": None,
            "blocks": [],
            "dropped": 0,
            "running": [],
            "busy": {},
        }
        before, self._before = self._before, status
        if snapshot is None or status is None:
            return frame
        self.cursor = snapshot.cursor
        fresh = [block for block in snapshot.blocks if block.end_ns > now_ns - RECENT_NS]
        self._recent = [b for b in (*self._recent, *fresh) if b.end_ns > now_ns - BUSY_LAG_NS - BUSY_SPAN_NS]
        frame["blocks"] = [packed_block(block) for block in fresh[-MAX_BLOCKS:]]
        frame["dropped"] = max(0, len(fresh) - MAX_BLOCKS)
        frame["running"] = [[b.tenant, b.query, b.start, b.stop, b.layer, b.cores] for b in status.running]
        frame["busy"] = busy_shares(self._recent, status.running, now_ns - BUSY_LAG_NS, self._machine.cores)
        frame["engine"] = {
            **engine_summary(status, before),
            "held": snapshot.held,
            "draining": snapshot.draining,
            "pid": snapshot.engine_pid,
            "restarts": snapshot.engine_restarts,
        }
        return frame

    def _events(self) -> list[dict[str, Any]]:
        events = self._metrics.events
        if events is None:
            return []
        since, self._revision = self._revision, events.revision
        return events.since(since)

    def _tenant(self, name: str, now_ns: int, since_s: float, snapshot: Snapshot | None) -> dict[str, Any]:
        status = snapshot.status if snapshot else None
        counts, hour = self._metrics.tenants[name], self._metrics.hour
        recent = counts.window.stats(now_ns - RECENT_NS, now_ns + 1)
        second = counts.window.stats(now_ns - SECOND_NS, now_ns + 1)
        tenant = status.tenants.get(name) if status else None
        now, first = self._totals[-1][1][name], self._totals[0][1].get(name, self._totals[-1][1][name])
        return {
            **msgspec.to_builtins(recent),
            "second": {"qps": second.qps, "tail_ms": second.tail_ms},
            "waiting": tenant.waiting if tenant else None,
            "running": tenant.running if tenant else None,
            "cores": sum(len(b.cores) for b in status.running if b.tenant == name) if status else None,
            "versions": {str(version): n for version, n in sorted(tenant.versions.items())} if tenant else {},
            "drift": tenant.measured_ns / tenant.predicted_ns if tenant and tenant.predicted_ns else None,
            "answered": counts.outcomes["ok"],
            "memory": sum(each.total for each in snapshot.memory if each.tenant == name) if snapshot else None,
            "stages_ms": now.stages.means_ms(since=first.stages),
            "refused": _rates(now.refusals, first.refusals, since_s),
            "failed": _rates(now.failures, first.failures, since_s),
            "burn": {span: hour.burn(name, span) if hour else None for span in BURN_SPANS_S},
        }


def _totals(counts: RequestCounts) -> TenantTotals:
    return TenantTotals(counts.stage_totals(), dict(counts.refusals), dict(counts.failures))


def _rates(now: Mapping[str, int], before: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Per second, of each reason that occurred."""
    grown = {reason: count - before.get(reason, 0) for reason, count in now.items()}
    return {str(reason): round(more / seconds, 3) for reason, more in grown.items() if more > 0}


def engine_summary(status: EngineStatus, before: EngineStatus | None) -> dict[str, Any]:
    """The engine's present levels, and its rates since the frame before (None in the first)."""

    def rate(value: int, earlier: int) -> float:
        return max(0, value - earlier) / (max(1, status.time_ns - before.time_ns) / SECOND_NS) if before else 0.0

    states = Counter(worker.state for worker in status.workers)
    arrived = sum(t.arrived for t in status.tenants.values())
    return {
        "level": status.level,
        "level_source": status.level_source,
        "conflicts_per_s": rate(status.conflicts, before.conflicts) if before else None,
        "blocks_per_s": rate(status.blocks_started, before.blocks_started) if before else None,
        "scheduler_us_per_query": status.scheduler_ns / 1e3 / arrived if arrived else None,
        "gap_us": status.gap_ns / 1e3 / status.gaps if status.gaps else None,
        "workers": {state: states[state] for state in ("idle", "busy", "starting", "changing")},
        "worker_deaths": status.worker_deaths,
    }

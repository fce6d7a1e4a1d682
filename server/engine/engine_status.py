"""Collects the engine's present state and totals for metrics and dashboard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from veltair.profiles.artifact.dynamic_dimension import split_bucket
from veltair.scheduler.interference import ObservedSlowdown
from veltair.scheduler.stats import SchedulerStats
from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.worker_supervisor import WorkerSupervisor
from veltair.server.ipc.messages import EngineStatus, TenantSpec
from veltair.server.ipc.status_records import WorkerStatus

LEVEL_NS = 2_000_000_000  # how long a finished block says what the interference is


@dataclass(slots=True)
class Timings:
    """Sums over the engine's life.

    >>> Timings(scheduler_ns=9000, scheduler_events=3).gaps
    0
    """

    scheduler_ns: int = 0  # in Scheduler.handle
    scheduler_events: int = 0
    gap_ns: int = 0  # of a worker between two blocks of a query that follow at once
    gaps: int = 0

    def count_event(self, handled_ns: int) -> None:
        self.scheduler_ns += handled_ns
        self.scheduler_events += 1

    def count_gap(self, gap_ns: int) -> None:
        self.gap_ns += gap_ns
        self.gaps += 1


def collect_status(
    stats: SchedulerStats,
    arrivals: Arrivals,
    queries: InFlightQueries,
    supervisor: WorkerSupervisor,
    timings: Timings,
    specs: Mapping[int, TenantSpec],
    since: int | None,
) -> EngineStatus:
    """The engine now, with blocks after the cursor `since` unless that is None.

    `stats` are the scheduler's own, `specs` the tenants that it has, by number.
    """
    history = queries.history
    blocks, cursor = ((), history.count) if since is None else history.page(since)
    now_ns = time.monotonic_ns()
    running, waiting = dict.fromkeys(queries.counters, 0), dict.fromkeys(queries.counters, 0)
    names = {spec.key: spec.name for spec in specs.values()}
    for tenant, count in stats.waiting.items():
        waiting[names[split_bucket(tenant)[0]]] += count
    for number, spec in specs.items():
        waiting[spec.name] += arrivals.waiting(number)
    for batch in queries.batches():
        running[batch.tenant] += len(batch.queries)
    return EngineStatus(
        time_ns=now_ns,
        level=present_level(stats, queries, now_ns),
        level_source=stats.level_source,
        conflicts=stats.conflicts,
        capped_blocks=stats.capped_blocks,
        blocks_started=stats.blocks_started,
        blocks_ended=history.count,
        scheduler_ns=timings.scheduler_ns,
        scheduler_events=timings.scheduler_events,
        gap_ns=timings.gap_ns,
        gaps=timings.gaps,
        worker_deaths=supervisor.deaths,
        tenants={name: each.status(waiting[name], running[name]) for name, each in queries.counters.items()},
        running=tuple(batch.block_status(batch.order) for batch in queries.batches() if batch.order),
        workers=tuple(WorkerStatus(w.pid, w.shown_state, w.query, w.started_ns) for w in supervisor.all),
        blocks=blocks,
        cursor=cursor,
        sandbox=supervisor.sandbox,
    )


def present_level(stats: SchedulerStats, queries: InFlightQueries, now_ns: int) -> float | None:
    """The interference level, where something says what it is at present.

    The observed slowdown moves with each block that ends, and with nothing else: on a machine that became idle it stays
    at what the last blocks met, for hours. The scheduler may go on from there; as a statement about now it is none.
    """
    if stats.level_source != ObservedSlowdown.name:
        return stats.level  # of samples, or of the blocks that run
    last_ns = max((b.blocks[-1].end_ns for b in queries.batches() if b.blocks), default=queries.history.last_end_ns)
    return stats.level if now_ns - max(last_ns, queries.history.last_end_ns) < LEVEL_NS else None

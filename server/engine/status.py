"""The engine's present state and totals, as the metrics and the dashboard want them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from veltair.scheduler.stats import SchedulerStats
from veltair.server.engine.pending_query import Flight, Tally
from veltair.server.engine.worker_supervisor import Supervisor
from veltair.server.ipc.messages import Status, WorkerState


@dataclass(slots=True)
class Timings:
    """Sums over the engine's life."""

    scheduler_ns: int = 0  # in Scheduler.handle
    scheduler_events: int = 0
    gap_ns: int = 0  # of a worker between two blocks of a query that follow at once
    gaps: int = 0


def status(
    stats: SchedulerStats,
    flights: Collection[Flight],
    tallies: Mapping[str, Tally],
    supervisor: Supervisor,
    timings: Timings,
) -> Status:
    holding = dict.fromkeys(tallies, 0)
    for flight in flights:
        holding[flight.tenant] += len(flight.tickets)
    return Status(
        time_ns=time.monotonic_ns(),
        level=stats.level,
        level_source=stats.level_source,
        conflicts=stats.conflicts,
        capped_blocks=stats.capped_blocks,
        blocks=stats.blocks_started,
        scheduler_ns=timings.scheduler_ns,
        scheduler_events=timings.scheduler_events,
        gap_ns=timings.gap_ns,
        gaps=timings.gaps,
        worker_deaths=supervisor.deaths,
        tenants={name: tally.count(stats.waiting[name], holding[name]) for name, tally in tallies.items()},
        running=tuple(flight.running_block(flight.order) for flight in flights if flight.order),
        workers=tuple(WorkerState(w.pid, w.state, w.query, w.started_ns) for w in supervisor.all),
    )

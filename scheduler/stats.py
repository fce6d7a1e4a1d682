"""What the metrics and the simulator read of a scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from veltair.scheduler.interference import InterferenceProxy
from veltair.scheduler.state import SchedulerState


@dataclass(slots=True)
class Totals:
    """Counts since the start of the scheduler.

    >>> Totals().blocks_started
    0
    """

    blocks_started: int = 0
    conflicts: int = 0  # blocks that started on fewer cores than they wanted
    blocks_grown: int = 0  # growths that the workers took up
    capped_blocks: int = 0  # blocks that could not hold their share of the target on the cores that they may use


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The present state in numbers, and totals since the start (`Totals`); `Scheduler.stats()` makes one.

    >>> from veltair.scheduler.scheduler import Scheduler
    >>> from veltair.types import Machine
    >>> Scheduler(Machine(((0, 1),)), [], {}, "fcfs", workers=2).stats().workers
    2
    """

    waiting: dict[str, int]  # by tenant: queries that have not started
    in_flight: int  # queries that hold a worker
    running: int  # blocks
    workers: int
    cores_in_use: int
    level: float
    level_source: str
    blocks_started: int
    conflicts: int
    blocks_grown: int
    capped_blocks: int


def collect_stats(state: SchedulerState, proxy: InterferenceProxy, totals: Totals) -> SchedulerStats:
    """Reads the numbers off; O(waiting queries)."""
    waiting = dict.fromkeys(state.tenants, 0)
    for active in state.waiting.values():
        waiting[active.tenant.name] += 1
    return SchedulerStats(
        waiting=waiting,
        in_flight=len(state.in_flight),
        running=len(state.running_blocks),
        workers=state.workers,
        cores_in_use=state.cores - state.free,
        level=proxy.level,
        level_source=proxy.name,
        blocks_started=totals.blocks_started,
        conflicts=totals.conflicts,
        blocks_grown=totals.blocks_grown,
        capped_blocks=totals.capped_blocks,
    )

"""The result of one run of a simulation, and what is counted while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from veltair.loadgen.tenant_results import TenantOutcomes
from veltair.scheduler.events import Decision, StartBlock
from veltair.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True, eq=False)
class SimulationRun:
    """The result of a run after its warm-up.

    >>> run = SimulationRun([], blocks=8, conflicts=2, core_ns=5e9, window_ns=10**9, abandoned=False)
    >>> run.conflict_rate
    0.25
    """

    outcomes: list[TenantOutcomes]  # by tenant; unanswered queries count as missed
    blocks: int
    conflicts: int  # blocks that started on fewer cores than they wanted
    core_ns: float  # cores held x time
    window_ns: int
    abandoned: bool  # given up before its end

    @property
    def conflict_rate(self) -> float:
        return self.conflicts / self.blocks if self.blocks else 0.0


class RunMeter:
    """Counts blocks, conflicts and core time between the end of the warm-up and the end of the arrivals.

    >>> from veltair.types import Machine
    >>> meter = RunMeter(Scheduler(Machine(((0, 1),)), [], {}, "fcfs", workers=1), warm_ns=0, duration_ns=100)
    >>> meter.add(50, [])
    >>> meter.blocks, meter.core_ns
    (0, 0.0)
    """

    __slots__ = ("_cores", "_from_ns", "_pool", "_since_ns", "_to_ns", "_used", "blocks", "conflicts", "core_ns")

    def __init__(self, scheduler: Scheduler, warm_ns: int, duration_ns: int) -> None:
        self._cores, self._pool = scheduler.state.cores, scheduler.state.pool
        self._from_ns, self._to_ns = warm_ns, duration_ns
        self._since_ns = warm_ns
        self._used = 0  # cores, since the last event
        self.blocks = self.conflicts = 0
        self.core_ns = 0.0

    def add(self, now_ns: int, decisions: Sequence[Decision]) -> None:
        """Counts what the scheduler decided at an event."""
        if now_ns >= self._from_ns and self._since_ns < self._to_ns:
            until_ns = now_ns if now_ns < self._to_ns else self._to_ns
            self.core_ns += self._used * (until_ns - self._since_ns)
            self._since_ns = until_ns
            if now_ns < self._to_ns:
                for decision in decisions:
                    if isinstance(decision, StartBlock):
                        self.blocks += 1
                        self.conflicts += decision.conflict
        self._used = self._cores - self._pool.free

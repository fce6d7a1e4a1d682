"""VELTAIR-FULL and VELTAIR-AS: adaptive blocks, with code versions adapted or not (sections 4.2, 4.3 and 5.1)."""

from __future__ import annotations

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.blocks import Budget, form_adaptive_block, remaining_budget
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Grow, Start, Step


class VeltairFull(Policy):
    """Forms each next block when it can start, for the load and the interference level of that moment.

    Cores go to the oldest query first, either to begin its next block or to grow the one that started with too
    few (a conflict); a query that waits for a worker comes last. Nothing is refused.

    It fails under overload: as nothing is refused, every query waits behind those that are late already, and soon
    none is in time. One query that needs many cores does not hold up the others, since blocks start on what is free.

    >>> from veltair.scheduler.policies.by_name import make_policy
    >>> type(make_policy("veltair-as")).__name__  # VeltairFull(adapt_versions=False)
    'VeltairFull'
    """

    def __init__(self, *, adapt_versions: bool = True, against_slack: bool = True) -> None:
        """`adapt_versions`: for the level of the moment, else those that are best alone (VELTAIR-AS).
        `against_slack`: Avg_C and the layers' share are those of the layers left against the time left, else
        those of the whole model.
        """
        self._adapt_versions = adapt_versions
        self._against_slack = against_slack

    def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
        if not state.pool.free or not (state.wants_cores or state.waiting):
            return None
        for active in state.wanting_cores():
            if active.run is None:
                return self._start(state, active, now_ns)
            if missing := active.missing_cores(now_ns):
                return Grow(active, min(missing, state.free))
        head = state.head()
        return None if head is None else self._start(state, head, now_ns)

    def _start(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> Start:
        costs, start = active.costs, active.next_layer
        level = state.next_level(now_ns) if self._adapt_versions else SOLO  # Alg. 3 l. 10
        if self._against_slack:
            budget, counted_from = remaining_budget(costs, start, active.due_ns - now_ns), start
        else:
            budget, counted_from = Budget(active.qos_ns, costs.work[-1], costs.work), 0
        others_avg = state.total_avg - active.avg_cores
        formed, avg_cores, _ = form_adaptive_block(costs, level, start, budget, counted_from, others_avg, state.cores)
        return Start(active, active.next_block(level, formed.stop, formed.cores), level, formed.capped, avg_cores)

"""VELTAIR-FULL and VELTAIR-AS: adaptive blocks, and code versions adapted or not (sections 4.2, 4.3 and 5.1)."""

from __future__ import annotations

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.blocks import Budget, form_block, threshold
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.policy import Grow, Policy, Start, Step
from veltair.scheduler.state import SchedulerState


class VeltairFull(Policy):
    """Forms each next block when it can start, for the load and the interference level of that moment.

    Cores go to the oldest query first, be it to begin its next block or to grow the one that started with too
    few (a conflict); a query that waits for a worker comes last. Nothing is refused.
    """

    def __init__(self, *, adapt_versions: bool = True, against_slack: bool = True) -> None:
        """`adapt_versions`: for the level of the moment, else those that are best alone (VELTAIR-AS).
        `against_slack`: Avg_C and the layers' QoS are those of the layers left against the time left, else
        those of the whole model.
        """
        self._adapt_versions = adapt_versions
        self._against_slack = against_slack

    def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
        if not state.pool.free or not (state.wants or state.waiting):
            return None
        for active in state.wanting():
            if (run := active.run) is None:
                return self._start(state, active, now_ns)
            if missing := run.missing_cores(now_ns):
                return Grow(active, min(missing, state.free))
        head = state.head()
        return None if head is None else self._start(state, head, now_ns)

    def _start(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> Start:
        costs, start = active.costs, active.next_layer
        level = state.next_level(now_ns) if self._adapt_versions else SOLO  # Alg. 3 l. 10
        work = costs.work
        if self._against_slack:
            left_ns = active.due_ns - now_ns
            budget = Budget(left_ns if left_ns > 0 else 0, work[-1] - work[start], work)
            avg_cores = costs.cores_for_rest(level, start, budget.qos_ns)
        else:
            budget = Budget(active.qos_ns, work[-1], work)
            avg_cores = costs.cores_for_rest(level, 0, budget.qos_ns)
        state.renew_avg(active, avg_cores)
        extra = threshold(avg_cores, state.total_avg, state.cores)  # Alg. 3 l. 11
        bound = avg_cores + extra
        formed = form_block(costs, level, start, budget, avg_cores, bound if bound < costs.cores else costs.cores)
        return Start(active, active.block(level, formed.stop, formed.cores), level, formed.capped)

"""VELTAIR-FULL and VELTAIR-AS: adaptive blocks, with code versions adapted or not (sections 4.2, 4.3 and 5.1)."""

from __future__ import annotations

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.blocks import form_adaptive_block, remaining_budget, whole_budget
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.serving_order import BlockPolicy, ServingOrder
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Start


class VeltairFull(BlockPolicy):
    """Forms each next block when it can start, for the load and the interference level of that moment.

    Layers have their targets once and for all (Alg. 1 l. 3, section 4.2): however late a query is, its blocks get the
    cores that hold their layers' shares of the whole target. Who gets cores is `ServingOrder`'s. Nothing is refused.

    It fails where a query that needs many cores is the next to start: the others wait behind it, on idle cores. Under
    overload every query waits behind those that are late already, and soon none is in time.

    >>> from veltair.scheduler.policies.by_name import make_policy
    >>> type(make_policy("veltair-as")).__name__  # VeltairFull(adapt_versions=False)
    'VeltairFull'
    """

    def __init__(
        self, *, adapt_versions: bool = True, against_slack: bool = False, order: ServingOrder | None = None
    ) -> None:
        """`adapt_versions`: for the level of the moment, else those that are best alone (VELTAIR-AS).
        `against_slack`: another reading: Avg_C and the layers' shares are those of the layers left against the time
        left, so that a late query asks for more cores.
        """
        super().__init__(order or ServingOrder())
        self._adapt_versions = adapt_versions
        self._against_slack = against_slack

    def start_block(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> Start:
        costs, start = active.costs, active.next_layer
        level = state.next_level(now_ns) if self._adapt_versions else SOLO  # Alg. 3 l. 10
        if self._against_slack:
            budget, counted_from = remaining_budget(costs, start, active.due_ns - now_ns), start
        else:
            budget, counted_from = whole_budget(costs, active.qos_ns), 0
        others_avg = state.total_avg - active.avg_cores
        formed, avg_cores, _ = form_adaptive_block(costs, level, start, budget, counted_from, others_avg, state.cores)
        return Start(active, active.next_block(level, formed.stop, formed.cores), level, formed.capped, avg_cores)

"""Model-wise first come, first served: the baseline of VELTAIR section 3.2."""

from __future__ import annotations

from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Start


class Fcfs(Policy):
    """The whole model is one block on the fewest cores that hold its target alone, or on all if none do.

    Strictly in order: the head starts when that many cores are free, and keeps them to its end.

    It fails by head-of-line blocking: a query that needs many cores keeps the free ones idle until it can start, and
    cores that were right for a quiet machine are too few under interference.

    >>> from veltair.scheduler.policies.by_name import make_policy
    >>> type(make_policy("fcfs")).__name__
    'Fcfs'
    """

    starts_unasked = True

    def next_step(self, state: SchedulerState, now_ns: int) -> Start | None:
        # A query in flight has no cores only after its block was stopped early; those that it had are free again.
        active = next(iter(state.between_blocks()), None) or state.head()
        if active is None or active.avg_cores > state.free:
            return None
        return Start(active, active.next_block(SOLO, active.costs.layers, active.avg_cores), SOLO)

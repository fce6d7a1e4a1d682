"""Model-wise first come, first served: the baseline of VELTAIR section 3.2."""

from __future__ import annotations

from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.policy import Policy, Start
from veltair.scheduler.state import SchedulerState


class Fcfs(Policy):
    """The whole model is one block on the least cores that hold its QoS alone, or on all if none do.

    Strictly in order: the head starts when that many cores are free, and keeps them to its end.
    """

    def next_step(self, state: SchedulerState, now_ns: int) -> Start | None:
        # Only a block that was stopped early leaves a query in flight without cores; its own are free again.
        active = next(iter(state.between_blocks()), None) or state.head()
        if active is None or active.avg_cores > state.free:
            return None
        return Start(active, active.block(SOLO, active.costs.layers, active.avg_cores), SOLO)

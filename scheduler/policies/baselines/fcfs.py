"""Model-wise first come, first served: the baseline of VELTAIR section 3.2."""

from __future__ import annotations

from veltair.scheduler.costs import SOLO
from veltair.scheduler.policies.policy import Policy, Start
from veltair.scheduler.state import System


class Fcfs(Policy):
    """The whole model is one block on the least cores that hold its QoS alone, or on all if none do.

    Strictly in order: the head starts when that many cores are free, and keeps them to its end.
    """

    def next_step(self, system: System, now_ns: int) -> Start | None:
        # Only a block that was stopped early leaves a query in flight without cores; its own are free again.
        progress = next(iter(system.between_blocks()), None) or system.head()
        if progress is None or progress.avg_cores > system.free:
            return None
        return Start(progress, progress.block(SOLO, progress.costs.layers, progress.avg_cores), SOLO)

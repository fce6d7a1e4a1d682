"""Model-wise first come, first served: the baseline of VELTAIR section 3.2."""

from __future__ import annotations

from veltair.scheduler.costs import SOLO
from veltair.scheduler.state import Progress, Start, System
from veltair.types import LayerBlock


class Fcfs:
    """The whole model is one block on the least cores that hold its QoS alone, or on all if none do.

    Strictly in order: the head starts when that many cores are free, and keeps them to its end.
    """

    def next_step(self, system: System, now_ns: int) -> Start | None:
        # Only a block that was stopped early leaves a query in flight without cores; its own are free again.
        stopped = (progress for progress in system.in_flight.values() if progress.run is None)
        progress = next(stopped, None) or system.head()
        if progress is None or progress.avg_cores > system.free:
            return None
        return Start(progress, _rest(progress), SOLO)


def _rest(progress: Progress) -> LayerBlock:
    costs, cores, start = progress.costs, progress.avg_cores, progress.next_layer
    return LayerBlock(
        query=progress.query.id,
        start=start,
        stop=costs.layers,
        versions=costs.versions(SOLO, cores, start, costs.layers),
        cores=cores,
        predicted_ns=costs.time_ns(SOLO, cores, start, costs.layers),
    )

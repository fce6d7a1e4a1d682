"""Profiles corrected by what is measured: how much longer than predicted a tenant's blocks have taken recently."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TypeAlias

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.running_block import RunningBlock
from veltair.scheduler.state import SchedulerState

WEIGHT = 0.1  # a whole query's share in the moving average
FORGETTING = 0.02  # what a whole query on one core takes from the memory of blocks on several
LEAST, MOST = 0.5, 8.0


@dataclass(slots=True)
class Correction:
    """Ratios of measured over predicted time of one tenant, smoothed.

    Blocks on several cores have a ratio of their own: where other programs take a core, they wait for it at every
    layer, and one-core blocks do not. As such blocks may then be avoided, their ratio returns to the other's with
    time, so that they are tried again.

    >>> Correction(one_core=1.0, several=1.5).ratio(cores=4)
    1.5
    """

    one_core: float = 1.0
    several: float = 1.0

    def learn(self, run: RunningBlock, elapsed_ns: int) -> None:
        """Takes in a block that ran to its end. It counts by its share of the query's work, because the time that it
        takes to begin and to end a block makes a short one several times as long.
        """
        ratio = elapsed_ns / (run.predicted_ns or 1)
        ratio = LEAST if ratio < LEAST else MOST if ratio > MOST else ratio
        work = run.costs.time_work
        share = (work[run.block.stop] - work[run.block.start]) / work[-1]
        if len(run.core_set) > 1:
            self.several += WEIGHT * share * (ratio - self.several)
        else:
            self.one_core += WEIGHT * share * (ratio - self.one_core)
            self.several += FORGETTING * share * (self.one_core - self.several)

    def ratio(self, cores: int) -> float:
        """The ratio for a block on that many cores."""
        return self.one_core if cores == 1 else self.several

    def least_rest_ns(self, costs: ProfileCosts, level: int, start: int) -> float:
        """What layers from `start` on take, on one core or on the number of cores on which they are fastest."""
        on_one_ns = costs.rest_on_one_ns[level][start] * self.one_core
        return min(on_one_ns, costs.least_rest_ns[level][start] * self.several)


Corrections: TypeAlias = defaultdict[str, Correction]  # by tenant


def remaining_ns(state: SchedulerState, active: ActiveQuery, correction: Correction) -> float:
    """What is left of the query after the block that runs, on the cores on which that is fastest."""
    level = state.steady.index if state.in_flight else SOLO
    return correction.least_rest_ns(active.costs, level, active.next_layer)


def remaining_core_ns(active: ActiveQuery, correction: Correction, now_ns: int) -> float:
    """Cores x time of what is left of the query, on the cores that it needs on average."""
    costs, run, left_ns = active.costs, active.run, 0.0
    if active.next_layer < costs.layers:
        cores = active.avg_cores
        time_ns = costs.time_ns(SOLO, cores, active.next_layer, costs.layers)
        left_ns = time_ns * correction.ratio(cores) * cores
    return left_ns + (0 if run is None else run.core_ns_left(now_ns))

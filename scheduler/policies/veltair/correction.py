"""Profiles corrected by what is measured: how much longer than predicted a tenant's blocks take of late."""

from __future__ import annotations

from dataclasses import dataclass

from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.running_block import RunningBlock

WEIGHT = 0.1  # a whole query's share in the moving average
FORGETTING = 0.02  # what a whole query on one core takes from the memory of blocks on several
LEAST, MOST = 0.5, 8.0
WORTH = 1.2  # cores x time that several may take of what one takes


@dataclass(slots=True)
class Correction:
    """Ratios of measured over predicted time, smoothed; one tenant's.

    Blocks on several cores have one of their own: where other programs take a core, they wait for it at every layer,
    and one-core blocks do not. As such blocks may then be avoided, their ratio goes back to the other's with time,
    so that they are tried again.
    """

    one_core: float = 1.0
    several: float = 1.0

    def learn(self, run: RunningBlock, elapsed_ns: int) -> None:
        """Of a block that ran to its end: it counts by its share of the query's work, since what it takes to begin and
        to end one makes a short one several times as long.
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

    def of(self, cores: int) -> float:
        return self.one_core if cores == 1 else self.several


def paying(costs: ProfileCosts, start: int, level: int, correction: Correction) -> int:
    """The most cores that do the layers from `start` on for little more than one core's time, taken together.

    Several that have become slower than one core has are dearer; never that one core has become slower alone makes
    them cheaper.
    """
    dearer = max(1.0, correction.several / correction.one_core)
    most_ns = WORTH * costs.time_ns(level, 1, start, costs.layers)
    cores = costs.cores
    while cores > 1 and cores * dearer * costs.time_ns(level, cores, start, costs.layers) > most_ns:
        cores -= 1
    return cores

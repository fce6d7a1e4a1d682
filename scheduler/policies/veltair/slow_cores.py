"""`SlowCores`: cores that other work slows down, such as the one where requests are read and decided about."""

from __future__ import annotations

from math import ceil

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.veltair.correction import Corrections
from veltair.scheduler.running_block import RunningBlock
from veltair.scheduler.state import SchedulerState
from veltair.types import CoreSet

SLOW = 1.5  # times as long as elsewhere: below that one core is as good as another
KNOWN = 1.1  # below that nothing is kept
MEMORY_NS = 30_000_000  # of blocks on a core: half of what is known of it is younger
FORGETTING_NS = 5_000_000_000  # of blocks on others, after which a core is tried again
MOST = 8.0


class SlowCores:
    """How many times as long as on the others a block takes on a core, for the cores where that is much.

    A correction (`Correction`) is a tenant's on whatever core; this is what is left of a core's own. A core that is
    slow is handed out last, a query rather waits for a better one where it ends earlier so and no others wait, and the
    core counts as a part of one at admission.

    ::

        slow.learn(active, run, elapsed_ns)
        slow.cores                                    # (0,)
        slow.is_worth_waiting(state, active, now_ns)  # for another than the free ones
    """

    def __init__(self, corrections: Corrections) -> None:
        self._corrections = corrections
        self._ratios: dict[int, float] = {}  # by core, those above KNOWN
        self.cores: CoreSet = ()  # above SLOW

    def learn(self, active: ActiveQuery, run: RunningBlock, elapsed_ns: int) -> None:
        """Takes in a block that ran to its end."""
        ratios = self._ratios
        for core in [core for core in ratios if core not in run.core_set]:
            self._move(core, 1.0, elapsed_ns, FORGETTING_NS)
        if len(run.core_set) == 1:
            expected_ns = run.predicted_ns * self._corrections[active.tenant.name].one_core
            ratio = elapsed_ns / expected_ns if expected_ns else 1.0
            self._move(run.core_set[0], min(ratio, MOST), elapsed_ns, MEMORY_NS)
        self.cores = tuple([core for core in sorted(ratios) if ratios[core] > SLOW]) if ratios else ()

    def fast_free(self, state: SchedulerState) -> int:
        """How many free cores are not slow."""
        if not self.cores:
            return state.free
        return sum([core not in self.cores for core in state.pool.free_cores()])

    def capacity(self, state: SchedulerState) -> float:
        """What all cores together do, in cores that are not slow."""
        return state.cores - sum([1 - 1 / self._ratios[core] for core in self.cores])

    def is_worth_waiting(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> bool:
        """Whether the rest of a query ends earlier on the next core that is not slow than on a free one, and so do all
        that wait, one after the other: a slow core does more than none."""
        if not self.cores or self.fast_free(state):
            return False
        ends_ns = [self._end_ns(each, now_ns) for each in state.in_flight.values() if self._holds_fast_cores(each.run)]
        if not ends_ns:
            return False
        rest_ns = active.costs.rest_on_one_ns[SOLO][active.next_layer] * self._corrections[active.tenant.name].one_core
        here = min([self._ratios[core] for core in state.pool.free_cores()])
        turns = ceil(max(1, len(state.waiting)) / (state.cores - len(self.cores)))
        return min(ends_ns) + rest_ns * turns < now_ns + rest_ns * here

    def _end_ns(self, active: ActiveQuery, now_ns: int) -> float:
        run = active.run
        assert run is not None
        ratio = self._corrections[active.tenant.name].ratio(len(run.core_set))
        return max(now_ns, run.ends_ns + (ratio - 1) * run.predicted_ns)

    def _holds_fast_cores(self, run: RunningBlock | None) -> bool:
        return run is not None and not set(run.core_set) <= set(self.cores)

    def _move(self, core: int, to: float, elapsed_ns: int, memory_ns: int) -> None:
        before = self._ratios.get(core, 1.0)
        after = before + (to - before) * elapsed_ns / (elapsed_ns + memory_ns)
        if after > KNOWN:
            self._ratios[core] = after
        else:
            self._ratios.pop(core, None)

"""Layer-blocks: how VELTAIR cuts the layers left of a query (section 4.2, Alg. 2).

The deviations from the printed algorithm: blocks are half-open and the pivot begins the next one; without a
pivot the rest of the model is one block; a block that would need more than the bound is extended over the
following pivots until it fits, and capped at the bound where none does.
"""

from __future__ import annotations

from collections.abc import Iterator

from veltair.scheduler.costs.layer_slopes import LayerSlopes
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.types import Record

SHORT = 0.02  # of a model's work: such a rest takes longer to begin and to end as a block than to run


class Budget(Record, frozen=True):
    """The time that layers may take, and the work by which it is split among them.

    >>> Budget(qos_ns=100, work_left=4, work=[0, 1, 4]).share_ns(1, 2)
    75
    """

    qos_ns: int  # for all of `work_left`; never negative
    work_left: int
    work: list[int]  # prefix sums over the layers (ProfileCosts.work or ProfileCosts.time_work)

    def share_ns(self, start: int, stop: int) -> int:
        """The share of layers [start, stop): the sum of the layers' own."""
        if self.work_left == 0:
            return self.qos_ns
        return self.qos_ns * (self.work[stop] - self.work[start]) // self.work_left


class FormedBlock(Record, frozen=True):
    """A block of layers [start, stop) and the cores that it should get; `form_block` makes one.

    >>> FormedBlock(start=0, stop=3, cores=4, qos_ns=5_000_000, capped=False).cores
    4
    """

    start: int
    stop: int
    cores: int
    qos_ns: int  # its share of the budget
    capped: bool  # no extent fits into its share within the bound


def whole_budget(costs: ProfileCosts, qos_ns: int) -> Budget:
    """The whole target for all layers, split by their work (Alg. 1 l. 3)."""
    return Budget(qos_ns, costs.work[-1], costs.work)


def remaining_budget(costs: ProfileCosts, start: int, left_ns: int) -> Budget:
    """The time left for layers [start, end), split by their work; a time below 0 counts as 0."""
    work = costs.work
    return Budget(left_ns if left_ns > 0 else 0, work[-1] - work[start], work)


def form_adaptive_block(
    costs: ProfileCosts, level: int, start: int, budget: Budget, counted_from: int, others_avg: int, cores: int
) -> tuple[FormedBlock, int, int]:
    """The next block of a query, from layer `start` on, its Avg_C and its threshold in cores (Alg. 3 l. 11, Alg. 2).

    `veltair-full` starts this block and `veltair plan` shows it.

    `counted_from`: Avg_C is that of the layers from here on against the budget. `others_avg`: the sum of Avg_C of the
    other active queries. `cores`: of the machine.
    """
    avg_cores = costs.cores_for_rest(level, counted_from, budget.qos_ns)
    extra = threshold(avg_cores, others_avg + avg_cores, cores)
    bound = avg_cores + extra
    if bound > costs.cores:
        bound = costs.cores
    return form_block(costs, level, start, budget, avg_cores, bound), avg_cores, extra


def threshold(avg_cores: int, total_avg: int, machine_cores: int) -> int:
    """The cores above its average that a model may use: idle ones, split by average need (section 4.3).

    12, 12 and 24 of 64 cores leave 16: 4, 4 and 8. Where the averages fit the machine, so do averages and
    thresholds together; where they do not, the threshold is 0.

    >>> threshold(24, 12 + 12 + 24, 64)
    8
    """
    return (machine_cores - total_avg) * avg_cores // total_avg if total_avg < machine_cores else 0


def find_pivots(
    costs: ProfileCosts, level: int, start: int, budget: Budget, avg_cores: int, bound: int
) -> Iterator[int]:
    """Layers after `start` that alone need `bound` cores or more, and more than the model's average (Alg. 2 l. 5)."""
    slopes = _slopes(costs, level, budget, avg_cores, bound)
    if slopes is not None:
        layer = start
        while (layer := slopes.next_above(layer + 1, budget.qos_ns, budget.work_left)) < costs.layers:
            yield layer


def form_block(costs: ProfileCosts, level: int, start: int, budget: Budget, avg_cores: int, bound: int) -> FormedBlock:
    """The block that begins at `start` (Alg. 2 l. 13-18), on at most `bound` cores."""
    qos_ns, work_left = budget.qos_ns, budget.work_left
    end = costs.layers
    slopes = _slopes(costs, level, budget, avg_cores, bound)
    nearest = stop = end if slopes is None else slopes.next_above(start + 1, qos_ns, work_left)
    while True:
        share_ns = budget.share_ns(start, stop)
        cores = costs.least_cores(level, start, stop, share_ns, bound)
        if cores is not None:
            return FormedBlock(start, stop, cores, share_ns, capped=False)
        if stop == end or slopes is None:
            break
        stop = slopes.next_above(stop + 1, qos_ns, work_left)
    # Nothing fits. Up to the nearest pivot, so that the next decision comes soon.
    cores = costs.fastest_cores(level, start, nearest, bound)
    return FormedBlock(start, nearest, cores, budget.share_ns(start, nearest), capped=True)


def with_short_rest(formed: FormedBlock, costs: ProfileCosts, budget: Budget) -> FormedBlock:
    """The block, and on the same cores what would remain of the model after it, if that is short. Beyond the paper."""
    work = costs.time_work
    if not 0 < work[-1] - work[formed.stop] <= SHORT * work[-1]:
        return formed
    share_ns = budget.share_ns(formed.start, costs.layers)
    return FormedBlock(formed.start, costs.layers, formed.cores, share_ns, formed.capped)


def _slopes(costs: ProfileCosts, level: int, budget: Budget, avg_cores: int, bound: int) -> LayerSlopes | None:
    """A layer is a pivot if it is steeper here than its share of the time over its work: it needs more cores than
    that. None: no layer can need more than all.
    """
    enough = bound - 1 if bound > avg_cores else avg_cores
    return None if enough >= costs.cores else costs.slopes(level, enough, budget.work)

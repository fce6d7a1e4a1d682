"""Which waiting queries the default policy runs together."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.policies.batching import Batch, candidate_batches
from veltair.scheduler.policies.veltair.correction import Correction
from veltair.scheduler.policies.veltair.sizing import PLANNED
from veltair.scheduler.state import SchedulerState


def choose_batch(
    state: SchedulerState, leader: ActiveQuery, queue: Iterable[ActiveQuery], correction: Correction, now_ns: int
) -> Batch | None:
    """The batch that saves most core time, of those in which no query becomes late and which take less of the cores
    than the queries one by one, each on one core. A query never waits for others to join.

    `queue`: the tenant's queries that wait and can be in time.
    """
    level = state.next_level(now_ns)
    best, most = None, 0.0
    alone_ns, counted = leader.costs.rest_on_one_ns[level][0], 0
    for batch in candidate_batches(state.costs, leader, queue):
        alone_ns += sum([each.costs.rest_on_one_ns[level][0] for each in batch.members[counted:]])
        counted = len(batch.members)
        slack_ns = (batch.due_ns - now_ns) * PLANNED
        saved_ns = alone_ns * correction.one_core - least_core_ns(batch.costs, level, slack_ns, correction)
        if saved_ns > most:
            best, most = batch, saved_ns
    return best


def least_core_ns(costs: ProfileCosts, level: int, slack_ns: float, correction: Correction) -> float:
    """Cores x time of the whole model on the fewest cores that hold the slack; infinite if none do."""
    on_one_ns = costs.rest_on_one_ns[level][0] * correction.one_core
    if on_one_ns <= slack_ns:
        return on_one_ns
    cores = costs.cores_to_end(level, 0, round(slack_ns / correction.several))
    return inf if cores is None else cores * costs.time_ns(level, cores, 0, costs.layers) * correction.several

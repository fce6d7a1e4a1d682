"""Which of the queries that wait could run as one batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import NamedTuple

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.policies.veltair.correction import Correction
from veltair.scheduler.state import SchedulerState


class Batch(NamedTuple):
    members: list[ActiveQuery]  # the leader not among them
    costs: ProfileCosts  # of the smallest profiled batch that holds them all
    due_ns: int  # when the first of them is due


def growing(state: SchedulerState, leader: ActiveQuery, queue: Iterable[ActiveQuery]) -> Iterator[Batch]:
    """Ever larger batches of a query and those of its tenant behind it, in their order, filling one profile each."""
    if not leader.tenant.batching:
        return
    behind = (active for active in queue if active is not leader)
    following = next(behind, None)
    members: list[ActiveQuery] = []
    samples, due_ns = leader.query.batch, leader.due_ns
    for costs in state.costs[leader.tenant.model]:
        before = len(members)
        while following is not None and samples + following.query.batch <= costs.profile.batch:
            members.append(following)
            samples += following.query.batch
            due_ns = min(due_ns, following.due_ns)
            following = next(behind, None)
        if len(members) > before:
            yield Batch(members.copy(), costs, due_ns)
        if following is None:
            return


def spent_ns(costs: ProfileCosts, level: int, slack_ns: float, correction: Correction) -> float:
    """Cores x time of the whole model on as few cores as hold the slack; infinite if none do."""
    on_one_ns = costs.rest_on_one_ns[level][0] * correction.one_core
    if on_one_ns <= slack_ns:
        return on_one_ns
    cores = costs.cores_to_end(level, 0, round(slack_ns / correction.several))
    return inf if cores is None else cores * costs.time_ns(level, cores, 0, costs.layers) * correction.several

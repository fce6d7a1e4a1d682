"""Which of the waiting queries could run as one batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.profile_costs import ProfileCosts


class Batch(NamedTuple):
    """Queries that could join a leader; `candidate_batches` makes them.

    ::

        batch = Batch(members=(second, third), costs=costs, due_ns=15_000_000)
        Start(leader, block, SOLO, members=batch.members, costs=batch.costs)
    """

    members: tuple[ActiveQuery, ...]  # without the leader
    costs: ProfileCosts  # of the smallest profiled batch that holds them all
    due_ns: int  # when the first of them is due


def candidate_batches(
    costs_by_model: Mapping[str, Sequence[ProfileCosts]], leader: ActiveQuery, queue: Iterable[ActiveQuery]
) -> Iterator[Batch]:
    """Batches of increasing size: a query and those of its tenant behind it, in their order, filling one profile
    each."""
    if not leader.tenant.batching:
        return
    behind = (active for active in queue if active is not leader)
    following = next(behind, None)
    members: list[ActiveQuery] = []
    samples, due_ns = leader.query.batch, leader.due_ns
    for costs in costs_by_model[leader.tenant.model]:
        before = len(members)
        while following is not None and samples + following.query.batch <= costs.profile.batch:
            members.append(following)
            samples += following.query.batch
            due_ns = min(due_ns, following.due_ns)
            following = next(behind, None)
        if len(members) > before:
            yield Batch(tuple(members), costs, due_ns)
        if following is None:
            return

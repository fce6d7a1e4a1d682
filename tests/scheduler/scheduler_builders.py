"""Builders of small profiles and machines for the tests of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from veltair.errors import InvariantError
from veltair.scheduler.events import Decision, QueryArrived, StartBlock, StopBlock, WorkersChanged
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.scheduler import Scheduler
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Stop
from veltair.types import CodeVersion, LatencyTable, Layer, Machine, ModelProfile, QoSTarget, Query, Tenant

Rows = Sequence[Sequence[int]]  # ns, (levels, cores)


def make_profile(
    layers: Sequence[Sequence[Rows]],
    *,
    levels: tuple[float, ...] = (1.0,),
    model: str = "m",
    batch: int = 1,
    flops: Sequence[int] = (),
    nbytes: int = 0,
) -> ModelProfile:
    """`layers[layer][version]` is a table of latencies in ns, (levels, cores)."""
    return ModelProfile(
        model=model,
        batch=batch,
        layers=tuple(
            Layer(i, f"layer{i}", "generic", (), (), flops=flops[i] if flops else 0, bytes=nbytes)
            for i in range(len(layers))
        ),
        versions=tuple(
            tuple(
                CodeVersion(i, j, 64, 1, f"l{i}_v{j}", LatencyTable(levels, tuple(map(tuple, rows))))
                for j, rows in enumerate(versions)
            )
            for i, versions in enumerate(layers)
        ),
        environment={},
        digest="",
    )


def simple_profile(*layers: Sequence[int], **rest: Any) -> ModelProfile:
    """One version for each layer, measured alone: each argument is a layer's ns on 1, 2, … cores."""
    return make_profile([[[row]] for row in layers], **rest)


def make_machine(*sizes: int) -> Machine:
    """L3 domains of these sizes; cores are numbered from 0."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return Machine(tuple(tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)))


def make_tenant(qos_ns: int, name: str = "a", model: str = "m", *, batching: bool = False) -> Tenant:
    return Tenant(name, model, QoSTarget(qos_ns), batching=batching)


def make_query(id: int, arrival_ns: int = 0, tenant: str = "a", batch: int = 1, **rest: Any) -> Query:
    """A query without a deadline of its own."""
    return Query(id, tenant, arrival_ns, batch=batch, **rest)


def arrives(
    scheduler: Scheduler, id: int, at: int, tenant: str, deadline_ns: int | None = None, **rest: Any
) -> list[Decision]:
    """The decisions on a query of that tenant that arrives."""
    return scheduler.handle(QueryArrived(at, Query(id, tenant, at, deadline_ns, **rest)))


def started(decisions: Sequence[Decision]) -> list[int]:
    """The queries of which a block starts, in order."""
    return [decision.block.query for decision in decisions if isinstance(decision, StartBlock)]


class StopOnce(Policy):
    """Stops one query's block, and then asks for nothing."""

    def __init__(self, query: int) -> None:
        self._query = query

    def next_step(self, state, now_ns):
        query, self._query = self._query, -1
        return Stop(state.in_flight[query]) if query != -1 else None


def stop_block(scheduler: Scheduler, query: int) -> None:
    """Has the query's running block stopped, as a policy may; a BlockFinished before its end may follow."""
    policy, scheduler._policy = scheduler._policy, StopOnce(query)
    decisions = scheduler.handle(WorkersChanged(0, scheduler.state.workers))
    scheduler._policy = policy
    if decisions != [StopBlock(query)]:
        raise InvariantError(f"expected the block of query {query} to be stopped, got {decisions}")


def snapshot(state: SchedulerState) -> object:
    """All that an event or a policy could change, as values."""
    queries = [
        (
            *(active.query.id, active.state, active.costs, active.qos_ns, active.due_ns, active.avg_cores),
            *(active.next_layer, active.run and msgspec.structs.astuple(active.run), active.cancelled),
            *(active.ready_ns, active.number, [member.query.id for member in active.members]),
        )
        for active in (*state.waiting.values(), *state.in_flight.values())
    ]
    collections = state.waiting, state.leader_of, state.in_flight, state.running_blocks, state.wants_cores
    numbers = state.workers, state.started, state.total_avg, state.most_in_flight, state.steady.index
    return queries, list(map(list, collections)), numbers, state.pool.free_cores()

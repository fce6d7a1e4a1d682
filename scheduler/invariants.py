"""The rules that hold after every event."""

from __future__ import annotations

from collections.abc import Iterator

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.query_states import HOLDING_A_WORKER, RUNNING_A_BLOCK, QueryState
from veltair.scheduler.state import SchedulerState


def find_violations(state: SchedulerState) -> Iterator[str]:
    """What contradicts itself in the state, in words. O(queries + cores)."""
    free = state.pool.free_cores()
    if len(free) != state.free:
        yield f"{state.free} cores are counted free, but {free} are"
    held = [core for run in state.running_blocks.values() for core in run.core_set]
    if sorted([*held, *free]) != list(state.machine.cores):
        yield f"blocks hold the cores {sorted(held)}, free are {free}, the machine has {state.machine.cores}"
    if len(state.in_flight) > max(state.workers, state.most_in_flight):
        yield f"{len(state.in_flight)} queries are in flight on {state.workers} workers"
    active_queries = [*state.waiting.values(), *state.in_flight.values()]
    if state.total_avg != sum(active.avg_cores for active in active_queries):
        yield f"the active queries' average needs do not add up to {state.total_avg}"
    members = {member.query.id: leader for leader in active_queries for member in leader.members}
    if state.leader_of != members or len({*state.waiting, *state.in_flight, *members}) < (
        len(active_queries) + len(members)
    ):
        yield f"the members of batches are known as {list(state.leader_of)}, but are {list(members)}"
    for active in active_queries:
        yield from _violations_of_query(state, active)


def _violations_of_query(state: SchedulerState, active: ActiveQuery) -> Iterator[str]:
    """Whether the collections hold the query as its state says, and what it runs fits."""
    query, run, where = active.query.id, active.run, active.state
    runs, wants = where in RUNNING_A_BLOCK, where is QueryState.READY
    if where is QueryState.RUNNING and run is not None:
        wants = run.growable
    held_as = [
        query in state.waiting,
        query in state.in_flight,
        state.running_blocks.get(query) is not None,
        query in state.wants_cores,
    ]
    if held_as != [where is QueryState.WAITING, where in HOLDING_A_WORKER, runs, wants]:
        yield f"query {query} is {where.name}, but stands in other collections"
    if state.running_blocks.get(query) is not run:
        yield f"query {query} runs {run}, but is known to run {state.running_blocks.get(query)}"
    if where is QueryState.WAITING and (active.next_layer != 0 or active.cancelled or active.members):
        yield f"query {query} waits to start, but has run, was cancelled or leads a batch"
    if any(member.state is not QueryState.MEMBER for member in active.members):
        yield f"query {query} leads a batch of queries that are no members"
    if run is None:
        if not 0 <= active.next_layer < active.costs.layers or active.fully_cancelled:
            yield f"query {query} has nothing to run, but has not ended"
        return
    block = run.block
    if block.query != query or block.stop != active.next_layer or not block.start < block.stop:
        yield f"query {query} goes on at layer {active.next_layer}, but runs {block}"
    if not 0 < run.stretches[-1][1] <= len(run.core_set):
        yield f"query {query} runs on {run.stretches[-1][1]} of {run.core_set}"

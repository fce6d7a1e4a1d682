"""The rules that hold after every event."""

from __future__ import annotations

from collections.abc import Iterator

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.state import SchedulerState


def violations(state: SchedulerState) -> Iterator[str]:
    """What contradicts itself in the state. O(queries + cores)."""
    free = state.pool.free_cores()
    if len(free) != state.free:
        yield f"{state.free} cores are counted free, but {free} are"
    held = [core for active in state.in_flight.values() if active.run for core in active.run.core_set]
    if sorted([*held, *free]) != list(state.machine.cores):
        yield f"blocks hold the cores {sorted(held)}, free are {free}, the machine has {state.machine.cores}"
    runs = {id: active.run for id, active in state.in_flight.items() if active.run is not None}
    if state.runs != runs:
        yield f"the blocks that run are known as {state.runs}"
    wants = {id: active for id, active in state.in_flight.items() if active.run is None or active.run.growable}
    if state.wants != wants:
        yield f"the queries that could use more cores are known as {state.wants}"
    if len(state.in_flight) > max(state.workers, state.most_in_flight):
        yield f"{len(state.in_flight)} queries are in flight on {state.workers} workers"
    states = state.waiting, state.in_flight, state.led
    if len(set().union(*states)) < sum(map(len, states)):
        yield "a query is two of: waiting, in flight, part of another's batch"
    if state.led != {member.query.id: leader for leader in state.in_flight.values() for member in leader.members}:
        yield f"the batches in flight are not made of {state.led}"
    active_queries = [*state.waiting.values(), *state.in_flight.values()]
    if state.total_avg != sum(active.avg_cores for active in active_queries):
        yield f"the active_queries queries' average needs do not add up to {state.total_avg}"
    for active in state.waiting.values():
        if active.run is not None or active.next_layer != 0 or active.cancelled or active.members:
            yield f"query {active.query.id} waits to start, but has run, was cancelled or leads a batch"
    for active in state.in_flight.values():
        yield from _of_query(active)


def _of_query(active: ActiveQuery) -> Iterator[str]:
    query, run = active.query.id, active.run
    if run is None:
        if not 0 <= active.next_layer < active.costs.layers or active.fully_cancelled:
            yield f"query {query} has nothing to run, but has not ended"
        return
    block = run.block
    if block.query != query or block.stop != active.next_layer or not block.start < block.stop:
        yield f"query {query} goes on at layer {active.next_layer}, but runs {block}"
    if not 0 < run.stretches[-1][1] <= len(run.core_set) <= block.cores:
        yield f"query {query} runs on {run.stretches[-1][1]} of {run.core_set}, and wanted {block.cores} cores"

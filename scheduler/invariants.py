"""The rules that hold after every event."""

from __future__ import annotations

from collections.abc import Iterator

from veltair.scheduler.state import Progress, System


def violations(system: System) -> Iterator[str]:
    """What contradicts itself in the state. O(queries + cores)."""
    free = system.pool.free_cores()
    if len(free) != system.free:
        yield f"{system.free} cores are counted free, but {free} are"
    held = [core for progress in system.in_flight.values() if progress.run for core in progress.run.core_set]
    if sorted([*held, *free]) != list(system.machine.cores):
        yield f"blocks hold the cores {sorted(held)}, free are {free}, the machine has {system.machine.cores}"
    runs = {id: progress.run for id, progress in system.in_flight.items() if progress.run is not None}
    if system.runs != runs:
        yield f"the blocks that run are known as {system.runs}"
    wants = {id: progress for id, progress in system.in_flight.items() if progress.run is None or progress.run.growable}
    if system.wants != wants:
        yield f"the queries that could use more cores are known as {system.wants}"
    if len(system.in_flight) > max(system.workers, system.most_in_flight):
        yield f"{len(system.in_flight)} queries are in flight on {system.workers} workers"
    states = system.waiting, system.in_flight, system.led
    if len(set().union(*states)) < sum(map(len, states)):
        yield "a query is two of: waiting, in flight, part of another's batch"
    if system.led != {member.query.id: leader for leader in system.in_flight.values() for member in leader.members}:
        yield f"the batches in flight are not made of {system.led}"
    active = [*system.waiting.values(), *system.in_flight.values()]
    if system.total_avg != sum(progress.avg_cores for progress in active):
        yield f"the active queries' average needs do not add up to {system.total_avg}"
    for progress in system.waiting.values():
        if progress.run is not None or progress.next_layer != 0 or progress.cancelled or progress.members:
            yield f"query {progress.query.id} waits to start, but has run, was cancelled or leads a batch"
    for progress in system.in_flight.values():
        yield from _of_query(progress)


def _of_query(progress: Progress) -> Iterator[str]:
    query, run = progress.query.id, progress.run
    if run is None:
        if not 0 <= progress.next_layer < progress.costs.layers or progress.forsaken:
            yield f"query {query} has nothing to run, but has not ended"
        return
    block = run.block
    if block.query != query or block.stop != progress.next_layer or not block.start < block.stop:
        yield f"query {query} goes on at layer {progress.next_layer}, but runs {block}"
    if not 0 < run.stretches[-1][1] <= len(run.core_set) <= block.cores:
        yield f"query {query} runs on {run.stretches[-1][1]} of {run.core_set}, and wanted {block.cores} cores"

"""The scheduler's time for a small query under `veltair`: alone, and on a machine on which many wait.

    python -m bench.micro.small_queries -o FILE.json

A small query is a recommendation of three layers and 20 us. It costs two events, its arrival and the end of its block.
On the overloaded machine a constant number of them waits and runs in batches, beside a large model. The events are
recorded once on a virtual machine; only a scheduler that takes them again is timed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache, partial
from itertools import count
from random import Random

from bench.micro.runner import make_runner
from bench.paper.scheduling_cost import synthetic
from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue
from veltair.scheduler.events import Event, QueryArrived
from veltair.scheduler.scheduler import Scheduler
from veltair.simulation.interference_model import Alone, solo_times
from veltair.simulation.virtual_machine import VirtualMachine
from veltair.types import CodeVersion, LatencyTable, Layer, Machine, ModelProfile, QoSTarget, Query, Tenant

CORES = (2, 64)
WAITING = (16, 64, 256, 1024)
QUERIES = 2000  # small ones that a run times
LAYER_NS = (4_000, 10_000, 6_000)  # of one sample on one core
BATCHES = (1, 4, 16)
SMALL = Tenant("small", "small", QoSTarget(200_000_000), batching=True)
LARGE = Tenant("large", "large", QoSTarget(400_000_000))


def small_profile(batch: int, cores: int) -> ModelProfile:
    """Returns a profile in which a sample of a batch costs little after the first, and two cores save little."""
    versions = []
    for layer, sample_ns in enumerate(LAYER_NS):
        one_ns = sample_ns * (0.8 + 0.2 * batch)
        rows = [[round(one_ns * level * (0.7 + 0.3 / c)) for c in range(1, cores + 1)] for level in (1.0, 2.0)]
        table = LatencyTable((1.0, 2.0), tuple(map(tuple, rows)))
        versions.append((CodeVersion(layer, 0, 1 << 16, 64, f"l{layer}_v0", table),))
    layers = tuple(Layer(i, f"layer{i}", "matmul", (), (), 10**5, 10**4) for i in range(len(LAYER_NS)))
    return ModelProfile("small", batch, layers, tuple(versions), {}, "")


@cache
def catalogue(cores: int) -> ProfileCatalogue:
    small = [small_profile(batch, cores) for batch in BATCHES]
    return ProfileCatalogue({"small": small, "large": [synthetic("large", 55, cores, Random(2026))]}, cores)


def make_scheduler(cores: int) -> Scheduler:
    machine = Machine(tuple(tuple(range(i, min(i + 4, cores))) for i in range(0, cores, 4)))
    return Scheduler(machine, (SMALL, LARGE), catalogue(cores), "veltair", cores)


def record(cores: int, waiting: int) -> Iterator[tuple[Event, bool]]:
    """Yields the events of a run, each with whether enough queries wait then, so that none arrives next.

    One of the large model runs and small ones arrive until `waiting` wait; if that is 0, small ones come one by one.
    """
    scheduler = make_scheduler(cores)
    virtual, state = VirtualMachine(scheduler, Alone(solo_times(scheduler))), scheduler.state
    numbers = count()

    def arrive(tenant: Tenant) -> None:
        virtual.add_event(QueryArrived(virtual.now_ns, Query(next(numbers), tenant.name, virtual.now_ns)))

    arrive(LARGE if waiting else SMALL)
    for event, _ in virtual.run():
        enough = len(state.waiting) >= waiting and len(state.in_flight) > 0
        yield event, enough
        active = (*state.in_flight.values(), *state.waiting.values())
        if waiting and not any(each.tenant is LARGE for each in active):
            arrive(LARGE)
        elif not enough:
            arrive(SMALL)


@cache
def recorded(cores: int, waiting: int) -> tuple[list[Event], list[Event]]:
    """Returns the events until enough queries wait, and those until `QUERIES` more have arrived."""
    before: list[Event] = []
    timed: list[Event] = []
    full, arrivals = False, 0
    for event, enough in record(cores, waiting):
        (timed if full else before).append(event)
        arrivals += full and isinstance(event, QueryArrived)
        full = full or enough
        if arrivals >= QUERIES:
            break
    return before, timed


def time_queries(loops: int, cores: int, waiting: int) -> float:
    """Seconds that `loops` runs spend in the scheduler."""
    before, timed = recorded(cores, waiting)
    took_s = 0.0
    for _ in range(loops):
        handle = make_scheduler(cores).handle
        for event in before:
            handle(event)
        begin = time.perf_counter()
        for event in timed:
            handle(event)
        took_s += time.perf_counter() - begin
    return took_s


def main() -> None:
    runner = make_runner("bench.micro.small_queries")
    for cores in CORES:
        for waiting in (0, *WAITING):
            name = f"small query, {cores} cores, {waiting} waiting" if waiting else f"small query alone, {cores} cores"
            runner.bench_time_func(name, partial(time_queries, cores=cores, waiting=waiting), inner_loops=QUERIES)


if __name__ == "__main__":
    main()

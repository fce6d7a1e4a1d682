"""`Upkeep`: what the engine does from time to time, whatever comes."""

from __future__ import annotations

from collections.abc import Iterator

from veltair.scheduler.events import Event
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.models.model_changes import ModelChanges
from veltair.server.engine.sampling.block_watchdog import BlockWatchdog
from veltair.server.engine.sampling.counter_sampling import CounterSampling
from veltair.server.engine.sampling.edge_timing import EdgeTiming
from veltair.server.engine.worker_supervisor import WorkerSupervisor

PERIOD_NS = 100_000_000  # while queries run


class Upkeep:
    """Starts missing workers, kills hung ones, changes their models, reads counters and clocks.

    Nothing of it is looked at when a query wakes the engine before its time: what a wake-up costs is the code that it
    runs, since kernels have evicted all of it from the caches meanwhile.

    ::

        upkeep = Upkeep(supervisor, queries, changes, watchdog, counters, edge_timing)
        ready = poll.poll(upkeep.wait_s(time.monotonic_ns()))
        if upkeep.is_due(time.monotonic_ns()):  # or a worker has started, failed or died
            for event in upkeep.do(time.monotonic_ns()):
                decisions = scheduler.handle(event)
    """

    def __init__(
        self,
        supervisor: WorkerSupervisor,
        queries: InFlightQueries,
        changes: ModelChanges,
        watchdog: BlockWatchdog,
        counters: CounterSampling,
        edge_timing: EdgeTiming,
    ) -> None:
        self._supervisor, self._queries, self._changes = supervisor, queries, changes
        self._watchdog, self._counters, self._edge_timing = watchdog, counters, edge_timing
        self._idle_ns: int | None = 0  # when it is due on an idle machine; None: not before something happens
        self._busy_ns = 0  # while queries run

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self._busy_ns or self._changes.under_way

    def wait_s(self, now_ns: int) -> float | None:
        """How long the engine may sleep; None: until something happens."""
        due_ns = self._busy_ns if self._queries.batches() else self._idle_ns
        look_s = self._changes.look_s
        if due_ns is None:
            return look_s
        wait_s = max(0, due_ns - now_ns) / 1e9
        return wait_s if look_s is None else min(wait_s, look_s)

    def do(self, now_ns: int) -> Iterator[Event]:
        """Yields what the scheduler is to know."""
        supervisor = self._supervisor
        supervisor.start_missing(now_ns)
        for batch in self._watchdog.find_hung(self._queries.batches(), now_ns):
            supervisor.kill_hung(batch.worker, f"a block of {batch.description}")
        if self._changes.under_way:
            self._changes.advance(now_ns)
        for sampling in (self._counters, self._edge_timing):
            if (sampled := sampling.sample_if_due(now_ns)) is not None:
                yield sampled
        waits_s = supervisor.seconds_to_start(now_ns), self._counters.seconds_to_sample(now_ns)
        known_ns = [now_ns + round(wait_s * 1e9) for wait_s in waits_s if wait_s is not None]
        self._idle_ns = min(known_ns, default=None)
        self._busy_ns = min([*known_ns, now_ns + PERIOD_NS])

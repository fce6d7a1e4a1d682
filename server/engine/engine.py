"""The engine process: messages become events, the scheduler's decisions become messages. One thread, no waiting.

Started by the front as `python -m veltair.server.engine.engine PARENT SOCKET TENSORS` (two inherited descriptors).
"""

from __future__ import annotations

import gc
import logging
import select
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from veltair.errors import InvariantError, VeltairError
from veltair.machine.hardware_counters import L3Counters, open_counters
from veltair.profiles.runtime.huge_pages import move_to_huge_pages
from veltair.profiles.runtime.locked_memory import locked_in_memory
from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    CountersSampled,
    Event,
    QueryArrived,
    QueryCancelled,
    WorkersChanged,
)
from veltair.server.engine.event_log import EventLog, Setup
from veltair.server.engine.in_flight import Flights
from veltair.server.engine.pending_query import Flight
from veltair.server.engine.status import Timings, status
from veltair.server.engine.tenancy import default_workers, limit_machine, open_artifact
from veltair.server.engine.worker_supervisor import Supervisor, WorkerProcess
from veltair.server.ipc import messages as m
from veltair.server.ipc.channel import Channel, ClosedError
from veltair.server.ipc.process_setup import leave_signals_to_front, set_nice, tie_to_parent
from veltair.types import Query

logger = logging.getLogger("veltair.engine")

NICE = -10  # above the workers: a decision that waits for a core leaves cores idle
SAMPLE_NS = 10_000_000  # between two readings of the L3 counters
FAILED_STARTS = 3  # in a row before any worker was ready: the daemon gives up
FRONT_BURST = 16  # messages from the front before the workers are looked after again


class Engine:
    """Everything that is live: queries and their flights, workers, the scheduler."""

    def __init__(self, front: Channel[m.ToEngine], tensors: int, configure: m.Configure) -> None:
        """Raises ConfigError or ArtifactError."""
        artifacts = [open_artifact(spec) for spec in configure.tenants]
        self._weights = {artifact.weights for artifact in artifacts}
        machine = limit_machine(configure.cores)
        cores = machine.cores
        self._workers = configure.workers or default_workers(len(cores), artifacts)
        self._allowed = self._workers  # queries in flight, as the scheduler was last told
        self._counters: L3Counters | None = open_counters(cores)
        fitted = configure.counter_model if self._counters else None
        if configure.counter_model and not self._counters:
            logger.warning("counter_model is not used: no L3 counters; the level comes from observed slowdown")
        share = configure.planned_share
        setup = Setup(machine, configure.tenants, configure.policy, self._workers, fitted, share)
        self._scheduler = setup.scheduler(artifacts)
        self._log = EventLog(Path(configure.event_log), setup) if configure.event_log else None
        self._cores = cores
        self._front = front
        self._next_sample_ns = 0
        self._ready = self._leaving = False
        self._timings = Timings()
        self._poll = select.epoll()
        self._poll.register(front.fileno(), select.EPOLLIN)
        self._front_events = select.EPOLLIN
        load = m.Load(configure.tenants, cores, configure.slots)
        target = self._workers + configure.spare_workers
        self._supervisor = Supervisor(self._poll, target, tensors, load)
        self._flights = Flights(front, configure.tenants, self._supervisor)

    def run(self) -> None:
        """Until the front says Shutdown or is gone."""
        with ExitStack() as held:
            if self._log:
                held.callback(self._log.close)
            held.callback(self._supervisor.close)
            for weights in self._weights:
                move_to_huge_pages(weights)
            self._supervisor.start_missing(time.monotonic_ns())
            for weights in self._weights:  # while the workers start
                held.enter_context(locked_in_memory(weights))
            with suppress(ClosedError):  # the front is gone, and everyone who waits for an answer with it
                while not self._leaving:
                    self._turn()

    def _turn(self) -> None:
        front, supervisor = self._front, self._supervisor
        for fd, _ in sorted(self._poll.poll(self._wait_s()), key=self._rank):
            if fd == front.fileno():
                front.flush()
                self._read_front()
            elif (worker := supervisor.workers.get(fd)) is not None:
                self._read_worker(worker, gone=fd == worker.pidfd)
        now_ns = time.monotonic_ns()
        supervisor.start_missing(now_ns)
        if self._counters and now_ns >= self._next_sample_ns:
            self._next_sample_ns = now_ns + SAMPLE_NS
            self._decide(CountersSampled(now_ns, self._counters.sample(now_ns)))
        events = select.EPOLLIN | (select.EPOLLOUT if front.backlog else 0)
        if events != self._front_events:
            self._front_events = events
            self._poll.modify(front.fileno(), events)

    def _rank(self, event: tuple[int, int]) -> int:
        """The dead first, that nothing starts on them; the front last, since cores wait for what workers say."""
        fd = event[0]
        worker = self._supervisor.workers.get(fd)
        if worker is None:
            return 2
        return 0 if fd == worker.pidfd else 1

    def _wait_s(self) -> float | None:
        now_ns = time.monotonic_ns()
        start_s = self._supervisor.wait_s(now_ns)
        if self._counters is None:
            return start_s
        sample_s = max(0.0, (self._next_sample_ns - now_ns) / 1e9)
        return sample_s if start_s is None else min(start_s, sample_s)

    # The front

    def _read_front(self) -> None:
        for _ in range(FRONT_BURST):
            match self._front.receive():
                case None:
                    return
                case m.Infer() as infer:
                    self._infer(infer)
                case m.Cancel(query=query):
                    self._cancel(query)
                case m.Ask():
                    stats = self._scheduler.stats()
                    flights = self._flights
                    self._front.send(status(stats, flights.all(), flights.tally, self._supervisor, self._timings))
                case m.Shutdown():
                    self._leaving = True
                    return
                case m.Configure():
                    raise InvariantError("the engine is configured once")

    def _infer(self, infer: m.Infer) -> None:
        ticket = self._flights.take(infer)
        query = Query(infer.query, ticket.tenant, infer.arrival_ns, infer.deadline_ns, infer.batch)
        self._decide(QueryArrived(time.monotonic_ns(), query))

    def _cancel(self, query: int) -> None:
        if self._flights.cancel(query):
            self._decide(QueryCancelled(time.monotonic_ns(), query))

    # Workers

    def _read_worker(self, worker: WorkerProcess, *, gone: bool) -> None:
        """`gone`: the whole process; without, a closed socket only says that it soon will be."""
        if gone:
            self._condemn(worker)
        try:
            while (message := worker.channel.receive()) is not None:
                self._told(worker, message)
        except ClosedError:
            if not gone:
                self._supervisor.hung_up(worker)
                self._condemn(worker)
        if gone:
            self._lost(worker)

    def _condemn(self, worker: WorkerProcess) -> None:
        """Before anything else, lest the scheduler starts another query on it."""
        self._supervisor.condemn(worker)
        self._workers_changed()

    def _told(self, worker: WorkerProcess, message: m.FromWorker) -> None:
        match message:
            case m.BlockDone():
                self._block_done(message)
            case m.BlockBroke(query=query, reason=reason):
                logger.error("query %d of %s: %s", query, self._flights[query].tenant, reason)
                self._fail(self._flights[query], "failed", reason)
            case m.Grown(query=query, layer=layer, cores=cores, time_ns=time_ns):
                self._flights[query].grown.append(m.Growth(layer, cores, time_ns))
                self._decide(BlockGrown(time.monotonic_ns(), query, layer, cores))
            case m.Loaded():
                self._supervisor.loaded_one(worker)
                self._workers_changed()
            case m.Refused(reason=reason):
                logger.error("worker %d: %s", worker.pid, reason)
                if not self._ready:
                    self._give_up(message)

    def _block_done(self, done: m.BlockDone) -> None:
        flight = self._flights[done.query]
        if flight.order is None:
            raise InvariantError(f"a worker finished {done}, which was not ordered")
        if flight.idle_since_ns:
            self._timings.gap_ns += done.begin_ns - flight.idle_since_ns
            self._timings.gaps += 1
        flight.record(flight.order, done)
        if flight.forsaken:
            self._flights.land(flight, "cancelled")
        flight.idle_since_ns = done.end_ns
        elapsed_ns = done.end_ns - done.begin_ns
        self._decide(BlockFinished(time.monotonic_ns(), done.query, done.stop, elapsed_ns))
        if not flight.running:
            flight.idle_since_ns = 0

    def _lost(self, worker: WorkerProcess) -> None:
        now_ns = time.monotonic_ns()
        ending = self._supervisor.bury(worker, now_ns)
        if not self._ready and self._supervisor.failed_starts >= FAILED_STARTS:
            self._give_up(m.Refused("ArtifactError", f"workers cannot start: the last one {ending}"))
        if worker.query is not None:
            self._fail(self._flights[worker.query], "worker_died", f"the worker process that held the query {ending}")

    def _workers_changed(self) -> None:
        loaded = self._supervisor.loaded
        if not self._ready and loaded >= self._workers:
            self._ready = True
            self._front.send(m.Ready(self._workers, self._cores))
        allowed = min(loaded, self._workers)
        if self._ready and allowed != self._allowed:
            self._allowed = allowed
            self._decide(WorkersChanged(time.monotonic_ns(), allowed))

    def _give_up(self, refusal: m.Refused) -> None:
        self._front.send(refusal)
        self._leaving = True

    # The scheduler

    def _decide(self, event: Event) -> None:
        begin_ns = time.monotonic_ns()
        decisions = self._scheduler.handle(event)
        self._timings.scheduler_ns += time.monotonic_ns() - begin_ns
        self._timings.scheduler_events += 1
        for decision in decisions:
            self._flights.carry_out(decision)
        if self._log:
            self._log.write(event, decisions)

    def _fail(self, flight: Flight, outcome: m.Outcome, reason: str) -> None:
        self._flights.land(flight, outcome, reason)
        self._decide(BlockFailed(time.monotonic_ns(), flight.query, reason))


def main(arguments: Sequence[str]) -> int:
    parent, sock, tensors = map(int, arguments)
    tie_to_parent(parent)
    leave_signals_to_front()
    set_nice(NICE)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    front: Channel[m.ToEngine] = Channel(socket.socket(fileno=sock), m.ToEngine)
    try:
        configure = front.receive()
        if not isinstance(configure, m.Configure):
            raise InvariantError(f"expected Configure first, got {configure!r}")
        try:
            engine = Engine(front, tensors, configure)
        except VeltairError as error:
            front.send(m.Refused(type(error).__name__, str(error)))
            return 2
    except ClosedError:
        return 0
    front.socket.setblocking(False)
    gc.collect()
    gc.freeze()
    engine.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

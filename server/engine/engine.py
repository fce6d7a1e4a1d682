"""`Engine`: messages become scheduler events, decisions orders and messages. One thread; it never blocks on a query."""

from __future__ import annotations

import logging
import os
import select
import time
from contextlib import closing, nullcontext, suppress

from veltair.errors import InvariantError
from veltair.scheduler import events
from veltair.scheduler.policies.by_name import make_policy
from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.decisions import Decisions
from veltair.server.engine.engine_status import collect_status
from veltair.server.engine.event_log import open_event_log, scheduler_settings
from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.engine.in_flight_batch import InFlightBatch
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.lending.lone_orders import LoneOrders
from veltair.server.engine.lending.lone_queries import LoneQueries
from veltair.server.engine.machine_limits import default_workers, home_core, largest_cell, limit_machine
from veltair.server.engine.models.model_changes import ModelChanges
from veltair.server.engine.models.served_models import ServedModels
from veltair.server.engine.models.tenants import tenants_and_profiles
from veltair.server.engine.sampling.block_watchdog import BlockWatchdog
from veltair.server.engine.sampling.counter_sampling import CounterSampling
from veltair.server.engine.sampling.edge_timing import EdgeTiming
from veltair.server.engine.upkeep import Upkeep
from veltair.server.engine.worker_messages import BrokenMessageError, read_message
from veltair.server.engine.worker_process import WorkerProcess
from veltair.server.engine.worker_supervisor import WorkerSupervisor
from veltair.server.ipc import messages as m
from veltair.server.ipc.block_orders import BlockEnd
from veltair.server.ipc.channel import Channel, ChannelClosedError
from veltair.server.ipc.forks.fork_server import ForkServer
from veltair.server.ipc.open_artifacts import OpenArtifacts
from veltair.server.ipc.process_setup import end_by_failure
from veltair.server.protocol.failed_queries import one_line

logger = logging.getLogger("veltair.engine")

FAILED_STARTS = 3  # in a row before any worker was ready: the daemon gives up
KERNEL_FAILED = "a kernel of the model failed"  # what it said is in the log alone
FRONT_BURST = 16  # messages or queries from the front before the workers are served again


class Engine:
    """The live state of the engine process: queries, workers, the scheduler.

    ::

        Engine(front, pool, front.receive(), forks).run()  # what it receives is ConfigureEngine
    """

    def __init__(self, front: Channel[m.ToEngine], pool: int, configure: m.ConfigureEngine, forks: ForkServer) -> None:
        """Raises ConfigError or ArtifactError. `pool`: the descriptor of the tensor pool. `forks` makes workers."""
        opened = OpenArtifacts()
        artifacts = [opened.add(spec, configure.artifacts[spec.digest]) for spec in configure.tenants]
        self._specs = {spec.number: spec for spec in configure.tenants}
        machine = limit_machine(configure.cores)
        self._cores, self._home = machine.cores, home_core(machine)
        self._workers = self._allowed = configure.workers or default_workers(len(self._cores), artifacts)
        counters = CounterSampling(self._cores, wanted=configure.counter_model is not None)
        tenants, profiles = tenants_and_profiles(configure.tenants, artifacts)
        settings = scheduler_settings(configure, machine, self._workers, tenants, counters=counters.available)
        self._scheduler = settings.make_scheduler(profiles)
        self._front, self._log = front, open_event_log(configure, settings, tenants, profiles)
        self._ready, self._stopping, self._poll = False, False, select.epoll()
        self._poll.register(front.fileno(), select.EPOLLIN)
        self._front_events = select.EPOLLIN
        shared = configure.lanes, configure.artifacts, configure.sandbox, configure.load_share
        load = m.LoadModels(configure.tenants, self._cores, configure.slots, *shared)
        how = pool, load, largest_cell(artifacts), configure.hung_block_ns, forks, front.send
        self._supervisor = WorkerSupervisor(self._poll, self._workers + configure.spare_workers, *how)
        self._lanes = FrontLanes(self._poll, configure.lanes, configure.capacity, configure.slots)
        self._queries = InFlightQueries(front, self._lanes, self._specs, self._supervisor)
        self._arrivals = Arrivals(self._specs)
        deciding = Decisions(self._scheduler, self._queries.carry_out, self._log)
        self._decide, self._timings = deciding.decide, deciding.timings
        policy = make_policy(configure.policy)
        orders = LoneOrders(self._specs, self._scheduler.admission.lone_block, self._cores[:1], refuses=policy.refuses)
        known = self._specs, self._arrivals, self._lanes, self._supervisor, self._queries, self._decide, orders
        self._lone = LoneQueries(configure.lanes if policy.starts_unasked and not self._log else None, *known)
        edge_timing = EdgeTiming(os.getppid(), self._specs, self._lanes.work, self._arrivals.taken, self._lone.work)
        served = ServedModels(self._specs, self._scheduler, self._arrivals, self._queries, self._decide)
        self._changes = ModelChanges(served, self._supervisor, opened, front.send)
        watched = self._supervisor, self._queries, self._changes, BlockWatchdog(configure.hung_block_ns)
        self._upkeep = Upkeep(*watched, counters, edge_timing)

    def run(self) -> None:
        """Serve until the front sends Shutdown or is gone."""
        os.sched_setaffinity(0, os.sched_getaffinity(0) if self._home is None else (self._home,))
        log, front_is_gone = closing(self._log) if self._log else nullcontext(), suppress(ChannelClosedError)
        with log, closing(self._supervisor), end_by_failure("the engine fails"), front_is_gone:
            self._supervisor.start_missing(time.monotonic_ns())
            while not self._stopping:
                self._poll_once()

    def _poll_once(self) -> None:
        front, supervisor = self._front, self._supervisor
        ready = self._poll.poll(self._lone.wait_s(self._upkeep.wait_s(time.monotonic_ns())))
        begin_ns = time.monotonic_ns()
        if len(ready) > 1:
            ready.sort(key=self._urgency)
        workers_did_something = False  # beside their blocks
        for fd, _ in ready:
            if fd == self._lanes.bell:
                self._read_lanes()
            elif fd == supervisor.bell:
                self._answer_bell()
            elif (worker := supervisor.workers.get(fd)) is not None:
                self._read_worker(worker, exited=fd == worker.pidfd)
                workers_did_something = True
            elif fd == front.fileno():
                front.flush()
                self._read_front()
            self._lanes.wake_fronts()
        if self._lone.must_decide(changing=self._changes.under_way):
            self._decide_arrivals(begin_ns)
        now_ns = time.monotonic_ns()
        if workers_did_something or self._upkeep.is_due(now_ns):
            self._keep_up(now_ns)
        self._lone.lend()
        wanted = select.EPOLLIN | (select.EPOLLOUT if front.backlog else 0)
        if wanted != self._front_events:
            self._front_events = wanted
            self._poll.modify(front.fileno(), wanted)

    def _keep_up(self, now_ns: int) -> None:
        self._lone.look(wanted=self._changes.under_way)
        for sampled in self._upkeep.do(now_ns):
            self._decide(sampled)
        if not self._ready and self._supervisor.failed_starts >= FAILED_STARTS:
            self._give_up(m.StartFailed("ArtifactError", f"workers cannot start: {self._supervisor.failure}"))
        self._workers_changed()

    def _urgency(self, event: tuple[int, int]) -> int:
        """Dead workers come first, so that nothing starts on them; the front last: cores wait for workers' messages."""
        fd = event[0]
        if fd in (self._front.fileno(), self._lanes.bell):
            return 2
        worker = self._supervisor.workers.get(fd)
        return 0 if worker is not None and fd == worker.pidfd else 1

    # The front

    def _read_front(self) -> None:
        for _ in range(FRONT_BURST):
            match self._front.receive():
                case None:
                    return
                case m.InferQuery() as message:
                    self._arrivals.add(message, None)
                case m.AbortQuery(query=query):
                    self._abort(query)
                case m.LoadModel() | m.UnloadModel() as change:
                    self._changes.begin(change, self._front.take_descriptors())
                case m.GetStatus(since=since):
                    self._answer_bell()  # who asks may have answers that workers told it of before their bell rang
                    self._read_lanes()
                    here = self._arrivals, self._queries, self._supervisor, self._timings, self._specs
                    self._front.send(collect_status(self._scheduler.stats(), *here, since))
                case m.Shutdown():
                    self._answer_bell()  # the log has the ends of all that was answered
                    self._stopping = True
                    return
                case m.ConfigureEngine():
                    raise InvariantError("the engine is configured once")

    def _read_lanes(self) -> None:
        for lane, message in self._lanes.take():
            if isinstance(message, m.AbortQuery):
                self._abort(message.query)
                continue
            self._arrivals.add(message, lane)
            self._lone.arrived(message)
        self._lone.look(wanted=False)  # a thread rings where queries wait for long

    def _decide_arrivals(self, begin_ns: int) -> None:
        """Take some of the queries that have arrived, between two looks at the workers."""
        arrivals = self._arrivals
        count = min(len(arrivals), FRONT_BURST)
        for _ in range(count):
            message, lane = arrivals.take()
            now_ns = time.monotonic_ns()
            self._decide(events.QueryArrived(now_ns, self._queries.add(message, now_ns, lane)))
            self._lanes.decided(message, now_ns, admitted=self._queries.has(message.query))
        self._lanes.wake_fronts()
        if arrivals:
            arrivals.decided(count, time.monotonic_ns() - begin_ns)

    def _abort(self, query: int) -> None:
        self._lone.find(query)
        if (arrival := self._arrivals.remove(query)) is not None:  # the scheduler does not know it yet
            self._queries.add(arrival.message, time.monotonic_ns(), arrival.lane)
            self._queries.cancel(query)
        elif self._queries.cancel(query):
            self._decide(events.QueryCancelled(time.monotonic_ns(), query))

    # Workers

    def _read_worker(self, worker: WorkerProcess, *, exited: bool) -> None:
        """`exited`: the whole process is gone. Without it, a closed socket only says that it soon will be."""
        if exited:
            self._mark_dead(worker)
        try:
            while (message := read_message(worker, self._queries)) is not None:
                self._handle_worker_message(worker, message)
        except BrokenMessageError as error:
            self._supervisor.kill_broken(worker, str(error))
        except ChannelClosedError:
            if not exited:
                self._supervisor.kill_disconnected(worker)
                self._mark_dead(worker)
        if exited:
            self._answer_bell()  # it may have finished its block before it died
            self._lone.worker_died(worker)
            self._reap(worker)

    def _answer_bell(self) -> None:  # an end that is written meanwhile rings again
        if (end := self._lone.hear()) is not None:
            self._end_block(self._queries.batch(end.query).worker, end)
        for worker in [batch.worker for batch in self._queries.batches()]:
            if (end := worker.cell.take_end()) is not None:
                self._end_block(worker, end)

    def _end_block(self, worker: WorkerProcess, end: BlockEnd) -> None:
        if end.reported and worker.alive:  # a dead worker's messages have been read
            self._read_worker(worker, exited=False)
        batch = self._queries.batch(worker.query or 0)
        if not batch.may_end(end):
            self._supervisor.kill_broken(worker, str(end))
            return
        if batch.idle_since_ns:
            self._timings.count_gap(end.begin_ns - batch.idle_since_ns)
        batch.complete_block(end)
        if batch.fully_cancelled:
            self._queries.complete(batch, "cancelled")
        batch.idle_since_ns = end.end_ns
        self._decide(events.BlockFinished(time.monotonic_ns(), end.query, end.stop, end.end_ns - end.begin_ns))
        if not batch.running:
            batch.idle_since_ns = 0

    def _mark_dead(self, worker: WorkerProcess) -> None:
        """Before anything else, so that the scheduler does not start another query on it."""
        self._lone.worker_dies(worker)
        self._supervisor.mark_dead(worker)
        self._workers_changed()

    def _handle_worker_message(self, worker: WorkerProcess, message: m.FromWorker) -> None:
        match message:
            case m.KernelFailed(query=query, reason=reason):
                if self._lone.fail(worker, message, KERNEL_FAILED):
                    logger.error("query %d: %s", query, one_line(reason))
                    return
                batch = self._queries.batch(query)
                logger.error("%s: %s", batch.description, one_line(reason))
                self._fail(batch, "failed", KERNEL_FAILED)
            case m.CoresChanged(query=query, layer=layer, cores=cores):
                self._queries.batch(query).change_cores(message)
                self._decide(events.BlockGrown(time.monotonic_ns(), query, layer, cores))
                return
            case m.ModelLoaded() | m.ModelFailed() | m.ModelUnloaded():
                self._changes.worker_answered(worker, message, time.monotonic_ns())
            case m.ModelsLoaded(sandbox=sandbox):
                self._supervisor.models_loaded(worker, sandbox)
                self._changes.worker_idle(worker, time.monotonic_ns())
            case m.StartFailed():
                logger.error("worker %d: %s", worker.pid, message.reason)
                if not self._ready:
                    self._give_up(message)
        self._workers_changed()

    def _reap(self, worker: WorkerProcess) -> None:
        ending = self._supervisor.reap(worker, time.monotonic_ns())
        self._changes.worker_died(worker, ending)
        if worker.query is not None:
            batch = self._queries.batch(worker.query)
            logger.error("%s: lost with worker %d", batch.description, worker.pid)
            self._fail(batch, "worker_died", f"the worker process that held the query {ending}")

    def _workers_changed(self) -> None:
        loaded = self._supervisor.loaded
        if not self._ready and loaded >= self._workers:
            self._ready = True
            self._front.send(m.EngineReady(self._workers, self._cores))
        if self._ready and (allowed := min(loaded, self._workers)) != self._allowed:
            self._allowed = allowed  # batches in flight at once, as the scheduler knows it
            self._front.send(m.WorkersLeft(allowed))
            self._decide(events.WorkersChanged(time.monotonic_ns(), allowed))

    def _give_up(self, failure: m.StartFailed) -> None:
        self._front.send(failure)
        self._stopping = True

    def _fail(self, batch: InFlightBatch, outcome: m.Outcome, reason: str) -> None:
        self._queries.complete(batch, outcome, reason)
        self._decide(events.BlockFailed(time.monotonic_ns(), batch.id, reason))

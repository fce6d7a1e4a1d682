"""`EngineClient`: keeps an engine process running and sends queries to it; arrays in, arrays out."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from veltair.config import ServeConfig
from veltair.errors import OverloadedError, RefusalReason, ShutdownError, VeltairError
from veltair.server.front.admission import expire, refuse_past_deadline
from veltair.server.front.engine_connection import EngineConnection
from veltair.server.front.query_result import QueryResult
from veltair.server.front.snapshot import Snapshot
from veltair.server.front.watch.engine_heartbeat import end_if_it_hangs
from veltair.server.ipc.daemon_events import EventKind, Report, report_nothing
from veltair.server.ipc.forks.fork_server import ForkServer
from veltair.server.ipc.messages import ConfigureEngine, QueryEnded
from veltair.server.protocol.datatypes import Tensor
from veltair.server.repository.artifact_loader import ArtifactLoader
from veltair.server.repository.engine_models import EngineModels
from veltair.server.repository.live_models import LiveModels
from veltair.server.repository.model_control import ModelControl
from veltair.server.repository.served_tenant import ServedTenant
from veltair.server.repository.serving_engine import refuse_while_draining
from veltair.server.wire.io_threads import IoThreads
from veltair.server.wire.plan import SlotViews
from veltair.types import DEFAULT_PRIORITY_LEVEL, CoreSet

logger = logging.getLogger("veltair.server")

HEARTBEAT_S, FORK_SERVER_LOOK_S = 1.0, 0.01  # between two questions to the engine; to a fork server that still imports
FIRST_RESTART_S, LONGEST_RESTART_S = 0.1, 30.0


class EngineClient:
    """The front's client of the engine; it outlives restarts of the engine process.

    Create it with `start`, in the main thread: the engine dies with the thread that started it. ::

        client = await EngineClient.start(config)
        result = await client.infer("mlp", {"x": x})
        await client.drain()
    """

    def __init__(self, config: ServeConfig, models: LiveModels, threads: IoThreads | None, report: Report) -> None:
        self.config = config
        self.models, self._threads, self._report = models, threads, report
        self._engine: EngineConnection | None = None  # None while it is restarted
        self._starting: EngineConnection | None = None
        self._forks = ForkServer("engine")
        self._cores: CoreSet = ()
        self._worker_target = self._restarts = 0
        self._tasks: list[asyncio.Task[None]] = []  # those that restart and watch the engine
        self.control: ModelControl | None = None
        self._unloading: list[asyncio.Task[None]] = []  # what was unloaded while the engine started
        self._leaving = self.draining = False
        self._answers = True  # the engine has answered lately
        self._next_id = threads.next_query if threads else itertools.count(1).__next__
        self._cursor = self._first_cursor = 0  # the highest that was handed out; where this engine's blocks begin
        self.on_traced: Callable[[QueryEnded], None] = lambda ended: None  # hears of the I/O threads' traced queries

    @classmethod
    async def start(
        cls, config: ServeConfig, threads: IoThreads | None = None, report: Report = report_nothing
    ) -> EngineClient:
        """Check the artifacts, start the engine and wait until every worker has loaded every model.

        `threads` send queries of their own. Raises ArtifactError or ConfigError.
        """
        control = ModelControl(config, ArtifactLoader(config.server.hung_engine_s, config.server.load_share), report)
        client = cls(config, LiveModels([]), threads, report)
        try:
            client._forks.is_ready()  # it imports while the artifacts are checked
            client.models = LiveModels(await control.prepare())
            client._tasks = [asyncio.create_task(client._watch())]
            engine = await client._start_engine()
        except BaseException:
            await client.shut_down()
            control.loader.close()
            raise
        control.loader.stand_back()
        client.control, control.engine, control.room.engine = control, client, client
        client._tasks.append(asyncio.create_task(client._restart_whenever_it_ends(engine)))
        return client

    @property
    def tenants(self) -> Mapping[str, ServedTenant]:
        """The version of each tenant that is meant by default."""
        return self.models.tenants

    async def load(self, served: ServedTenant) -> None:
        """Serve another model, or this one from here on instead of one with its name and version, which is unloaded
        afterwards. Raises VeltairError where it cannot be served; nothing has changed then."""
        await self._running_engine().load(served)
        competing = self.models.competing(served)
        self.models.put(served)
        self._forget_plans(competing + self.models.competing(served))

    async def unload(self, served: ServedTenant) -> None:
        """Serve a model no longer; return when its last query has ended and nothing of it is in memory."""
        competing = [served, *self.models.competing(served)]
        self.models.drop(served)
        self._forget_plans(competing)
        if self._engine is not None:
            await self._engine.unload(served)

    @property
    def numbered(self) -> EngineModels | None:
        """The models as the engine knows them; None while it is restarted."""
        return None if self._engine is None else self._engine.models

    def _forget_plans(self, served: Iterable[ServedTenant]) -> None:
        if self._threads is not None and self._engine is not None:
            self._threads.clear_plans_of(self._engine.models.numbers_of(served))

    @property
    def ready(self) -> bool:
        """Whether new queries are accepted, and should be sent here."""
        engine = self._engine
        lives = engine is not None and not engine.exited.done() and engine.workers > 0
        return lives and self._answers and not (self._leaving or self.draining)

    def report_not_ready(self) -> None:
        """The daemon will end: whoever can send queries elsewhere should. They are served until `drain`."""
        self._leaving = True

    async def infer(
        self,
        tenant: ServedTenant | str,
        inputs: Mapping[str, Tensor],
        *,
        deadline_ns: int | None = None,
        priority_level: int = DEFAULT_PRIORITY_LEVEL,
        traced: bool = False,
    ) -> QueryResult:
        """Run one query. Its ids must have been checked; names, shapes and dtypes are checked here.

        `deadline_ns` is on the monotonic clock; the query is cancelled then. Cancelling the caller cancels the query,
        which stops at its next layer. The result of a `traced` query has its blocks. Raises RequestError,
        OverloadedError, DeadlineError, WorkerDiedError, or QueryError for a kernel that failed.
        """
        arrival_ns = time.monotonic_ns()
        served = self.models.resolve(tenant) if isinstance(tenant, str) else tenant
        refuse_while_draining(self)
        engine = self._running_engine()
        if not engine.workers:
            raise OverloadedError(RefusalReason.NO_WORKER)
        refuse_past_deadline(deadline_ns, arrival_ns)
        query = self._next_id()
        how = arrival_ns, deadline_ns
        result = engine.send_query(query, served, inputs, *how, priority_level=priority_level, traced=traced)
        timer = None
        if deadline_ns is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later((deadline_ns - time.monotonic_ns()) / 1e9, expire, result, engine, query)
        try:
            return await result
        except asyncio.CancelledError:
            engine.abort(query)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    async def snapshot(self, since: int | None = None) -> Snapshot:
        """The server now; with a cursor `since`, also the blocks after it that the engine still has (the last 8,192).

        Raises OverloadedError while the engine is restarted.
        """
        engine, first = self._running_engine(), self._first_cursor
        status = await engine.status(None if since is None else max(0, since - first))
        blocks = list(status.blocks)
        while status.cursor < status.blocks_ended:
            status = await engine.status(status.cursor)
            blocks += status.blocks
        cursor = first + status.cursor
        self._cursor = max(self._cursor, cursor)
        server = self.config.server
        return Snapshot(
            status=status,
            policy=server.policy,
            cores=self._cores,
            worker_target=self._worker_target,
            engine_pid=engine.pid,
            engine_restarts=self._restarts,
            held=engine.slots_taken,
            slots=server.queue_slots,
            draining=self.draining,
            blocks=tuple(blocks),
            cursor=cursor,
            memory=engine.models.memory(self.models.all(), self._worker_target + server.spare_workers),
        )

    async def drain(self) -> None:
        """Accept no more queries, wait until the accepted ones are answered, end the engine and its workers.

        What is not answered within `drain_timeout_s` fails with QueryError. Another task may `shut_down` meanwhile.
        """
        self._begin_drain()
        engine = self._engine
        if engine is not None:
            try:
                await asyncio.wait_for(engine.wait_until_idle(), self.config.server.drain_timeout_s)
            except TimeoutError:
                logger.warning("%d queries were not answered in time to shut down", len(engine.held))
        await self.shut_down()

    async def shut_down(self) -> None:
        """End at once: queries that are not answered fail with QueryError. Does nothing the second time."""
        self._begin_drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.control is not None:
            await self.control.close()
        if self._threads is not None:
            self._threads.drain_counts()  # by the numbers of this engine
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.fail_all(lambda: ShutdownError("the server shut down before the query was answered"))
            await engine.stop()
        self._forks.close()

    def slot_views(self, served: ServedTenant, batch: int) -> tuple[int, SlotViews] | None:
        """The tenant's number, and the memory of a query of this batch; None while there is no engine that has it."""
        return None if self._engine is None else self._engine.models.slot_views(served, batch)

    def open_to_threads(self) -> None:
        """Have the I/O threads take queries while somebody can serve them; else Python gets them, and says why not."""
        if self._threads is not None:
            self._threads.set_open(not self.draining and self._engine is not None and self._engine.workers > 0)

    def _begin_drain(self) -> None:
        self.draining = True
        self.open_to_threads()

    # Starting and restarting the engine process

    def _running_engine(self) -> EngineConnection:
        if self._engine is None or self._engine.exited.done():
            raise OverloadedError(RefusalReason.RESTARTING)
        return self._engine

    async def _start_engine(self) -> EngineConnection:
        while not self._forks.is_ready():
            await asyncio.sleep(FORK_SERVER_LOOK_S)
        configure = ConfigureEngine.of(self.config.server)
        engine = self._starting = EngineConnection(configure, self.models.resident(), self._threads, self._forks)
        engine.on_worker_died = lambda died: self._report(EventKind.WORKER_DIED, "", f"worker {died.pid} {died.how}")
        try:
            ready = await engine.ready
        except BaseException:
            await asyncio.shield(engine.stop())
            raise
        finally:
            self._starting = None
        self._cores, self._worker_target = ready.cores, ready.workers
        self._first_cursor = self._cursor
        self._engine, self._answers = engine, True
        engine.on_workers, engine.on_traced = self.open_to_threads, lambda ended: self.on_traced(ended)
        live = self.models.all()
        self._unloading = [asyncio.create_task(engine.unload(s)) for s in engine.models.all() if s not in live]
        self.open_to_threads()
        return engine

    async def _restart_whenever_it_ends(self, engine: EngineConnection) -> None:
        while True:
            code = await asyncio.shield(engine.exited)  # `stop` awaits it too, so it must not be cancelled
            if self._threads is not None:
                self._threads.drain_counts()  # by the numbers of this engine
                self._threads.clear_plans()
            self._engine = None
            logger.error("the engine process ended with code %d; its queries failed, another takes its place", code)
            self._report(EventKind.ENGINE_DIED, "", f"the engine process ended with code {code}; its queries failed")
            self._restarts += 1
            delay_s = FIRST_RESTART_S
            while self._engine is None:
                try:
                    engine = await self._start_engine()
                    self._report(EventKind.ENGINE_RESTARTED, "", f"the engine serves again, as process {engine.pid}")
                except (VeltairError, OSError, MemoryError) as error:
                    logger.error("the engine does not start: %s; next try in %.1f s", error, delay_s)
                    self._report(EventKind.ENGINE_START_FAILED, "", str(error))
                    await asyncio.sleep(delay_s)
                    delay_s = min(2 * delay_s, LONGEST_RESTART_S)

    async def _watch(self) -> None:
        """Replace an engine that lives and does not answer, and a fork server that is gone or stopped."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with suppress(OSError):  # who needs it tries again, and says why there is none
                self._forks.is_ready()
            hear = partial(setattr, self, "_answers")
            if engine := self._engine or self._starting:
                await end_if_it_hangs(engine, self.config.server.hung_engine_s, hear, self._report)

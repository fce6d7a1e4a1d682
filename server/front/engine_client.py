"""The engine as the front ends see it: arrays in, arrays out."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from veltair.config import ServeConfig, counter_coefficients
from veltair.errors import DeadlineError, OverloadedError, QueryError, UnknownModelError, VeltairError
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.profiles.artifact.manifest import Manifest
from veltair.server.front.engine_process import Answer, EngineProcess
from veltair.server.ipc.messages import Ask, BlockRecord, Configure, Ended, Shutdown, Status, TenantSpec
from veltair.server.protocol.requests import Tensor
from veltair.types import CoreSet, QoSTarget

logger = logging.getLogger("veltair.server")

REMEMBERED_BLOCKS = 8192
EXIT_S = 5.0  # what an engine told to leave gets before it is killed
FIRST_RESTART_S, LONGEST_RESTART_S = 0.1, 30.0

__all__ = ["Answer", "EngineClient", "Snapshot", "TenantInfo"]


@dataclass(frozen=True, slots=True)
class TenantInfo:
    name: str
    artifact: Artifact
    qos: QoSTarget
    priority: int
    batching: bool

    @property
    def manifest(self) -> Manifest:
        return self.artifact.manifest


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The server now. Counts start anew when the engine has to be started anew."""

    status: Status
    policy: str
    cores: CoreSet
    worker_target: int
    engine_pid: int
    engine_restarts: int
    held: int  # queries that hold a slot
    slots: int
    draining: bool
    blocks: tuple[BlockRecord, ...]  # of ended queries, oldest first
    cursor: int  # hand it in as `since` to get what follows


class EngineClient:
    """Create it with `start`, in the main thread: the engine dies with the thread that started it."""

    def __init__(self, config: ServeConfig, tenants: Mapping[str, TenantInfo]) -> None:
        self.config = config
        self.tenants = tenants
        self._index = {name: index for index, name in enumerate(tenants)}
        self._manifests = [info.manifest for info in tenants.values()]
        self._engine: EngineProcess | None = None  # None while it is started anew
        self._cores: CoreSet = ()
        self._worker_target = 0
        self._restarts = 0
        self._keeper: asyncio.Task[None] | None = None
        self._draining = False
        self._ids = itertools.count(1)
        self._blocks: deque[BlockRecord] = deque(maxlen=REMEMBERED_BLOCKS)
        self._cursor = 0

    @classmethod
    async def start(cls, config: ServeConfig) -> EngineClient:
        """Check the artifacts, spawn the engine and wait until every worker has loaded every model.

        Raises ArtifactError or ConfigError.
        """
        tenants = {}
        for entry in config.tenants:
            artifact = await asyncio.to_thread(load_artifact, Path(entry.artifact))
            qos_ns = artifact.manifest.qos_ns if entry.qos_ms is None else round(entry.qos_ms * 1e6)
            qos = QoSTarget(qos_ns, entry.percentile)
            tenants[entry.name] = TenantInfo(entry.name, artifact, qos, entry.priority, entry.batching)
        client = cls(config, tenants)
        engine = await client._spawn()
        client._keeper = asyncio.create_task(client._keep(engine))
        return client

    @property
    def ready(self) -> bool:
        """Whether new queries are taken."""
        return self._engine is not None and not self._engine.gone.done() and not self._draining

    async def infer(self, tenant: str, inputs: Mapping[str, Tensor], *, deadline_ns: int | None = None) -> Answer:
        """Run one query. Ids must have been checked; names, shapes and dtypes are.

        `deadline_ns`: on the monotonic clock; the query is given up then. Cancelling the caller cancels the query,
        which stops at its next layer. Raises RequestError, OverloadedError, DeadlineError, WorkerDiedError, or
        QueryError for a kernel that failed.
        """
        arrival_ns = time.monotonic_ns()
        if tenant not in self._index:
            raise UnknownModelError(f"unknown model {tenant!r}: expected one of {', '.join(self.tenants)}")
        if self._draining:
            raise OverloadedError("the server is shutting down")
        engine = self._living()
        if deadline_ns is not None and deadline_ns <= arrival_ns:
            raise DeadlineError("the deadline had passed when the query arrived")
        query = next(self._ids)
        answer = engine.begin(query, self._index[tenant], inputs, arrival_ns, deadline_ns)
        timer = None
        if deadline_ns is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later((deadline_ns - time.monotonic_ns()) / 1e9, _expire, engine, query, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            engine.cancel(query)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    async def snapshot(self, since: int = 0) -> Snapshot:
        """How it stands, with the blocks of queries that ended after the cursor `since` (as many as are kept).

        Raises OverloadedError while the engine is started anew.
        """
        engine = self._living()
        status = await engine.ask(Ask())
        fresh = min(max(self._cursor - since, 0), len(self._blocks))
        blocks = itertools.islice(self._blocks, len(self._blocks) - fresh, None)
        server = self.config.server
        return Snapshot(
            status, server.policy, self._cores, self._worker_target, engine.pid, self._restarts,
            len(engine.held), server.queue_slots, self._draining, tuple(blocks), self._cursor,
        )  # fmt: skip

    async def drain(self) -> None:
        """Take no more queries, wait for the accepted ones to be answered, end the engine and its workers.

        What is not answered within `drain_timeout_s` fails with QueryError. A second caller may `cut` the wait.
        """
        self._draining = True
        engine = self._engine
        if engine is not None:
            try:
                await asyncio.wait_for(engine.emptied(), self.config.server.drain_timeout_s)
            except TimeoutError:
                logger.warning("%d queries were not answered in time to shut down", len(engine.held))
        await self.cut()

    async def cut(self) -> None:
        """End at once: queries that are held fail with QueryError. Does nothing when all has ended."""
        self._draining = True
        if self._keeper is not None and not self._keeper.done():
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.fail_all(lambda: QueryError("the server shut down before the query was answered"))
        await _end(engine)

    # The engine's lives

    def _living(self) -> EngineProcess:
        if self._engine is None or self._engine.gone.done():
            raise OverloadedError("the engine is starting anew")
        return self._engine

    async def _spawn(self) -> EngineProcess:
        server = self.config.server
        specs = tuple(
            TenantSpec(
                info.name, str(info.artifact.path), info.artifact.digest,
                info.qos.latency_ns, info.qos.percentile, info.priority, info.batching,
            )
            for info in self.tenants.values()
        )  # fmt: skip
        configure = Configure(
            specs, server.policy, server.cores, server.workers, server.spare_workers, server.queue_slots,
            server.event_log,
            None if server.counter_model is None else counter_coefficients(Path(server.counter_model)),
            server.planned_share,
        )  # fmt: skip
        engine = EngineProcess(configure, self._manifests, self._remember)
        try:
            ready = await engine.ready
        except BaseException:
            await asyncio.shield(_end(engine))
            raise
        self._cores, self._worker_target = ready.cores, ready.workers
        self._engine = engine
        return engine

    async def _keep(self, engine: EngineProcess) -> None:
        """Start the engine anew whenever it ends."""
        while True:
            code = await asyncio.shield(engine.gone)  # also awaited by `_end`, and not to be cancelled
            self._engine = None
            logger.error("the engine process ended with code %d; its queries failed, another takes its place", code)
            self._restarts += 1
            delay_s = FIRST_RESTART_S
            while self._engine is None:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, LONGEST_RESTART_S)
                try:
                    engine = await self._spawn()
                except VeltairError as error:
                    logger.error("the engine does not start: %s; next try in %.1f s", error, delay_s)

    def _remember(self, ended: Ended) -> None:
        own = [block for block in ended.blocks if block.query == ended.query]  # a batch's come with its first query
        self._blocks.extend(own)
        self._cursor += len(own)


def _expire(engine: EngineProcess, query: int, answer: asyncio.Future[Answer]) -> None:
    if not answer.done():
        answer.set_exception(DeadlineError("the deadline passed before the query was answered"))
        engine.cancel(query)


async def _end(engine: EngineProcess) -> None:
    """Have the process leave, and reap it."""
    engine.tell(Shutdown())
    try:
        await asyncio.wait_for(asyncio.shield(engine.gone), EXIT_S)
    except TimeoutError:
        engine.kill()
        await engine.gone

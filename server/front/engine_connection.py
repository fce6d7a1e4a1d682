"""`EngineConnection`: starts one engine process and exchanges queries with it over a socket and a tensor pool.

A tensor pool belongs to one engine process. When that dies its workers are killed with it, but not at the same
instant, so their memory is never used again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress

from msgspec.structs import replace

from veltair.errors import (
    EngineDiedError,
    OverloadedError,
    QueryError,
    RefusalReason,
    UnknownModelError,
    VeltairError,
    error_of_kind,
    quoted,
)
from veltair.server.front.query_result import HeldQuery, QueryResult
from veltair.server.ipc import messages as m
from veltair.server.ipc.channel import Channel, ChannelClosedError
from veltair.server.ipc.forks.fork_server import ForkedProcess, ForkServer
from veltair.server.protocol.datatypes import Tensor
from veltair.server.repository.engine_models import EngineModels
from veltair.server.repository.served_tenant import ServedTenant
from veltair.server.wire.io_threads import IoThreads
from veltair.server.wire.settings import error_of

EXIT_S = 5.0  # an engine has this long to exit after Shutdown before it is killed
_LAST_QUERIES_S = 0.002  # between two looks at the queries that the I/O threads still hold


class EngineConnection:
    """One engine process, started by the constructor. `ready` and `exited` are futures of the running event loop.

    ::

        engine = EngineConnection(configure, tenants, None, forks)
        await engine.ready
        result = await engine.send_query(1, tenants[0], inputs, arrival_ns, None, priority_level=3, traced=False)
    """

    def __init__(
        self,
        configure: m.ConfigureEngine,
        tenants: Iterable[ServedTenant],
        threads: IoThreads | None,
        forks: ForkServer,
    ) -> None:
        """`configure`: without tenants. `threads` send their queries to this engine once it is ready. `forks` makes
        the process. Raises OSError or VeltairError where it cannot be; nothing is left then."""
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[m.EngineReady] = self._loop.create_future()
        self.exited: asyncio.Future[int] = self._loop.create_future()  # exit code
        self.workers = 0  # that can take queries
        self.on_workers: Callable[[], None] = lambda: None  # their number has changed
        self.on_worker_died: Callable[[m.WorkerDied], None] = lambda died: None
        self.on_traced: Callable[[m.QueryEnded], None] = lambda ended: None  # of the I/O threads' queries
        self.held: dict[int, HeldQuery] = {}
        self._status_requests: list[asyncio.Future[m.EngineStatus]] = []
        self._all_ended: asyncio.Future[None] | None = None
        self._changes: dict[int, asyncio.Future[None]] = {}  # by the number of the model that comes or goes
        with ExitStack() as undo:
            self._process = ForkedProcess(forks)
            undo.callback(self._process.end)
            self.pid = self._process.pid
            self._channel: Channel[m.ToFront] = Channel(self._process.socket, m.ToFront)
            models = self.models = EngineModels(threads, configure.capacity, configure.slots)
            undo.callback(models.close_descriptor)
            undo.callback(models.leave, "the engine process was not started")
            for tenant in tenants:
                models.open(models.add(tenant).number)
            self._link, self._slots = models.link, models.slots
            with suppress(ChannelClosedError):  # `_reap` settles everything
                self._channel.pass_descriptors(models.passed)
            undo.pop_all()
        models.close_descriptor()
        self._loop.add_reader(self._process.pidfd, self._reap)
        self._loop.add_reader(self._channel.fileno(), self._read)
        self.send(replace(configure, tenants=models.specs, lanes=models.lanes, artifacts=models.artifacts))

    async def load(self, tenant: ServedTenant) -> None:
        """Serve one more. Raises ArtifactError or another VeltairError where it cannot be; it is forgotten then."""
        spec = self.models.add(tenant)
        loaded = self._changes[spec.number] = self._loop.create_future()
        self.send(m.LoadModel(spec), tenant.artifact.files)
        await asyncio.shield(loaded)
        self.models.open(spec.number)

    async def unload(self, tenant: ServedTenant) -> None:
        """Forget it once the last of its queries has ended. It takes no more of them."""
        number = self.models.number_of(tenant)
        if number is None:
            return
        self.models.close(number)
        while self._slots.held(number) and not self.exited.done():
            await asyncio.sleep(_LAST_QUERIES_S)
        if self.exited.done():
            return
        unloaded = self._changes[number] = self._loop.create_future()
        self.send(m.UnloadModel(number))
        await asyncio.shield(unloaded)

    def send_query(
        self,
        query: int,
        tenant: ServedTenant,
        inputs: Mapping[str, Tensor],
        arrival_ns: int,
        deadline_ns: int | None,
        *,
        priority_level: int,
        traced: bool,
    ) -> asyncio.Future[QueryResult]:
        """Copy the inputs into a slot and send the query.

        Raises OverloadedError when no slot is free, RequestError for arrays that do not fit one.
        """
        number = self.models.number_of(tenant)
        if number is None:  # it was unloaded meanwhile
            raise UnknownModelError(f"unknown model {quoted(tenant.name)}")
        slot = self._slots.take(number, time.monotonic_ns())
        try:
            content = self.models.write_inputs(number, slot, inputs)
        except BaseException:
            self._slots.give_back(number, slot)
            raise
        how = arrival_ns, deadline_ns, traced, priority_level
        message = m.InferQuery(query, number, slot, content.batch, *how, content.bucket, content.extent)
        held = self.held[query] = HeldQuery(self._loop.create_future(), message, time.monotonic_ns())
        self.send(message)
        return held.result

    def abort(self, query: int) -> None:
        """Nobody waits any more. The slot is free once the engine says that no worker uses it."""
        if query in self.held:
            self.send(m.AbortQuery(query))

    async def status(self, since: int | None = None) -> m.EngineStatus:
        """The engine now, with a page of the blocks after its cursor `since` unless that is None.

        Raises OverloadedError when the engine process ends before it answers."""
        if self.exited.done():
            raise OverloadedError(RefusalReason.RESTARTING)
        future: asyncio.Future[m.EngineStatus] = self._loop.create_future()
        self._status_requests.append(future)
        self.send(m.GetStatus(since))
        return await future

    async def wait_until_idle(self) -> None:
        """Return when every query has ended."""
        if self.held:
            self._all_ended = self._loop.create_future()
            await self._all_ended
        while self._slots.taken and not self.exited.done():  # by queries of the I/O threads
            await asyncio.sleep(_LAST_QUERIES_S)

    def send(self, message: m.Message, descriptors: Sequence[int] = ()) -> None:
        """Does nothing when the process is gone."""
        if self.exited.done():
            return
        with suppress(ChannelClosedError):  # `_reap` settles everything
            self._channel.send(message, descriptors)
        self._watch_backlog()

    def kill(self) -> None:
        self._process.kill()

    async def stop(self) -> None:
        """Have the process exit, and reap it."""
        self.send(m.Shutdown())
        try:
            await asyncio.wait_for(asyncio.shield(self.exited), EXIT_S)
        except TimeoutError:
            self.kill()
            await self.exited

    def fail_all(self, make_error: Callable[[], QueryError]) -> None:
        """Every query that is still waited for fails with an error of its own."""
        if self._link is not None:
            error = make_error()
            self._link.fail_all(str(error), error.failure)
        for held in self.held.values():
            held.fail(make_error())

    # Tensors

    @property
    def slots_taken(self) -> int:
        return self._slots.taken

    # The socket

    def _watch_backlog(self) -> None:
        if self._channel.backlog:
            self._loop.add_writer(self._channel.fileno(), self._flush)
        else:
            self._loop.remove_writer(self._channel.fileno())

    def _flush(self) -> None:
        with suppress(ChannelClosedError):  # `_reap` settles everything
            self._channel.flush()
        self._watch_backlog()

    def _read(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._handle(message)
        except ChannelClosedError:
            self._loop.remove_reader(self._channel.fileno())

    def _handle(self, message: m.ToFront) -> None:
        match message:
            case m.QueryEnded():
                self._query_ended(message)
            case m.EngineStatus():
                request = self._status_requests.pop(0)
                if not request.done():
                    request.set_result(message)
            case m.WorkersLeft():
                self.workers = message.workers
                self.on_workers()
            case m.WorkerDied():
                self.on_worker_died(message)
            case m.EngineReady() if not self.ready.done():
                self.workers = message.workers
                if self._link is not None:
                    self._link.use()
                self.ready.set_result(message)
            case m.StartFailed() if not self.ready.done():
                self.ready.set_exception(error_of_kind(message.kind, message.reason))
            case m.ModelLoaded(number=number):
                self._changed(number, None)
            case m.ModelFailed(number=number):  # `ModelUnloaded` follows when no worker holds it
                self._changed(number, error_of_kind(message.kind, message.reason))
            case m.ModelUnloaded(number=number):
                self.models.remove(number)
                self._changed(number, None)

    def _changed(self, number: int, error: VeltairError | None) -> None:
        """A model has come or gone, or could not."""
        change = self._changes.pop(number, None)
        if change is None or change.done():
            return
        if error is None:
            change.set_result(None)
        else:
            change.set_exception(error)

    def _query_ended(self, ended: m.QueryEnded) -> None:
        held = self.held.pop(ended.query, None)
        if held is None:
            self.on_traced(ended)
            return
        if not held.result.done():
            if ended.outcome == "done":
                held.answer(self.models, ended)
            else:
                held.fail(error_of(ended.outcome, ended.reason))
        self._slots.give_back(held.message.tenant, held.message.slot)
        self._settle_all_ended()

    def _settle_all_ended(self) -> None:
        if self._all_ended is not None and not self.held and not self._all_ended.done():
            self._all_ended.set_result(None)

    def _reap(self) -> None:
        """The process is gone: everyone who waits for it gets an error, once."""
        self._read()  # its last messages
        self._loop.remove_reader(self._process.pidfd)
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        self._channel.close()
        code = self._process.end()
        why = f"the engine process ended (code {code}) and took the query along"
        self.models.leave(why)
        self.fail_all(lambda: EngineDiedError(why))
        self.held.clear()
        self._settle_all_ended()
        for request in [each for each in self._status_requests if not each.done()]:
            request.set_exception(OverloadedError(RefusalReason.RESTARTING))
        for number in list(self._changes):
            self._changed(number, QueryError(f"the engine process ended (code {code}) before the model was loaded"))
        if not self.ready.done():
            self.ready.set_exception(QueryError(f"the engine process ended (code {code}) before it was ready"))
        self.exited.set_result(code)

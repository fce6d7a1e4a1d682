"""One life of the engine process as the front sees it: its socket, its tensor pool, the queries it holds.

A pool belongs to one life. When an engine dies its workers are killed with it, but not at the same instant, so
their memory is never used again.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from veltair import errors
from veltair.errors import DeadlineError, OverloadedError, QueryError, RequestError, VeltairError, WorkerDiedError
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import Manifest
from veltair.server.ipc import tensor_pool
from veltair.server.ipc.channel import Channel, ClosedError, pair
from veltair.server.ipc.messages import BlockRecord, Cancel, Configure, Ended, Infer, Ready, Refused, Status, ToFront
from veltair.server.ipc.tensor_pool import FreeSlots, TensorPool, batch_of
from veltair.server.protocol.requests import Tensor


@dataclass(frozen=True, slots=True)
class Answer:
    outputs: dict[str, NDArray[Any]]
    queue_ns: int  # arrival to first block
    execute_ns: int  # in blocks
    blocks: tuple[BlockRecord, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """A query whose slot is taken; `answer` may be settled before the slot is free."""

    answer: asyncio.Future[Answer]
    tenant: int
    slot: int
    batch: int
    arrival_ns: int


class EngineProcess:
    """Spawned by the constructor. `ready` and `gone` are futures of the running event loop."""

    def __init__(self, configure: Configure, manifests: Sequence[Manifest], on_blocks: Callable[[Ended], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_blocks = on_blocks
        self.ready: asyncio.Future[Ready] = self._loop.create_future()
        self.gone: asyncio.Future[int] = self._loop.create_future()  # exit code
        self.held: dict[int, Held] = {}
        self._asked: list[asyncio.Future[Status]] = []
        self._empty: asyncio.Future[None] | None = None
        self._manifests = manifests
        self._slots = FreeSlots(len(manifests), configure.slots)
        tensors = tensor_pool.create(manifests, configure.slots)
        self._pool = TensorPool(tensors, manifests, configure.slots)
        ours, theirs = pair()
        inherited = (theirs.fileno(), tensors)
        command = [sys.executable, "-P", "-m", "veltair.server.engine.engine", str(os.getpid()), *map(str, inherited)]
        try:
            self._process = subprocess.Popen(
                command, pass_fds=inherited, stdin=subprocess.DEVNULL, stdout=2, env=engine_environment()
            )
        finally:
            theirs.close()
            os.close(tensors)
        self.pid = self._process.pid
        ours.setblocking(False)
        self._channel: Channel[ToFront] = Channel(ours, ToFront)
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        self._loop.add_reader(ours.fileno(), self._read)
        self._send(configure)

    def begin(
        self, query: int, tenant: int, inputs: Mapping[str, Tensor], arrival_ns: int, deadline_ns: int | None
    ) -> asyncio.Future[Answer]:
        """Send a query off. Raises OverloadedError, or RequestError for arrays that do not fit the slot."""
        slot = self._slots.take(tenant)
        try:
            batch = self._write(tenant, slot, inputs)
        except BaseException:
            self._slots.give_back(tenant, slot)
            raise
        held = self.held[query] = Held(self._loop.create_future(), tenant, slot, batch, arrival_ns)
        self._send(Infer(query, tenant, slot, batch, arrival_ns, deadline_ns))
        return held.answer

    def cancel(self, query: int) -> None:
        """Nobody waits any more. The slot is free once the engine says that no worker uses it."""
        if query in self.held:
            self._send(Cancel(query))

    async def ask(self, message: Any) -> Status:
        future: asyncio.Future[Status] = self._loop.create_future()
        self._asked.append(future)
        self._send(message)
        return await future

    async def emptied(self) -> None:
        """Until every query has ended."""
        if self.held:
            self._empty = self._loop.create_future()
            await self._empty

    def tell(self, message: Any) -> None:
        self._send(message)

    def kill(self) -> None:
        self._process.kill()

    def fail_all(self, error: Callable[[], QueryError]) -> None:
        """Whoever still waits gets one error each."""
        for held in self.held.values():
            if not held.answer.done():
                held.answer.set_exception(error())

    # Tensors

    def _write(self, tenant: int, slot: int, inputs: Mapping[str, Tensor]) -> int:
        """Copy the inputs into the slot. Returns the batch."""
        manifest = self._manifests[tenant]
        batch = batch_of(manifest, inputs)
        if not 1 <= batch <= manifest.max_batch:
            raise RequestError(f"expected a batch of 1 to {manifest.max_batch}, got {batch}")
        InputLayout.of(manifest).fill(self._pool.inputs(tenant, slot, batch), inputs, batch)
        return batch

    def _answer(self, held: Held, blocks: tuple[BlockRecord, ...]) -> Answer:
        fields = self._pool.regions[held.tenant].outputs
        views = self._pool.outputs(held.tenant, held.slot, held.batch)
        outputs = {field.name: view.copy() for field, view in zip(fields, views, strict=True)}
        execute_ns = sum(block.elapsed_ns for block in blocks)
        return Answer(outputs, blocks[0].begin_ns - held.arrival_ns, execute_ns, blocks)

    # The socket

    def _send(self, message: Any) -> None:
        if self.gone.done():
            return
        with suppress(ClosedError):  # likewise
            self._channel.send(message)
        self._watch_backlog()

    def _watch_backlog(self) -> None:
        if self._channel.backlog:
            self._loop.add_writer(self._channel.fileno(), self._flush)
        else:
            self._loop.remove_writer(self._channel.fileno())

    def _flush(self) -> None:
        with suppress(ClosedError):  # `_reap` settles everything
            self._channel.flush()
        self._watch_backlog()

    def _read(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._told(message)
        except ClosedError:
            self._loop.remove_reader(self._channel.fileno())

    def _told(self, message: ToFront) -> None:
        match message:
            case Ended():
                self._ended(message)
            case Status():
                asked = self._asked.pop(0)
                if not asked.done():
                    asked.set_result(message)
            case Ready():
                if not self.ready.done():
                    self.ready.set_result(message)
            case Refused(kind=kind, reason=reason):
                if not self.ready.done():
                    self.ready.set_exception(_error(kind, reason))

    def _ended(self, ended: Ended) -> None:
        held = self.held.pop(ended.query)
        if not held.answer.done():
            match ended.outcome:
                case "done":
                    held.answer.set_result(self._answer(held, ended.blocks))
                case "rejected":
                    held.answer.set_exception(OverloadedError(ended.reason))
                case "worker_died":
                    held.answer.set_exception(WorkerDiedError(ended.reason))
                case "failed":
                    held.answer.set_exception(QueryError(ended.reason))
                case "cancelled":
                    held.answer.set_exception(DeadlineError("cancelled"))
        self._slots.give_back(held.tenant, held.slot)
        self._on_blocks(ended)
        self._settle_empty()

    def _settle_empty(self) -> None:
        if self._empty is not None and not self.held and not self._empty.done():
            self._empty.set_result(None)

    def _reap(self) -> None:
        """The process is gone: everyone who waits for it learns so, once."""
        self._read()  # what it said last
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        code = self._process.wait()
        os.close(self._pidfd)
        self._channel.close()
        self.fail_all(lambda: WorkerDiedError(f"the engine process ended (code {code}) and took the query along"))
        self.held.clear()
        self._settle_empty()
        for asked in self._asked:
            if not asked.done():
                asked.set_exception(OverloadedError("the engine process ended"))
        if not self.ready.done():
            self.ready.set_exception(QueryError(f"the engine process ended (code {code}) before it was ready"))
        self.gone.set_result(code)


def engine_environment() -> dict[str, str]:
    """The engine computes nothing with numpy; its threads would only take memory and cores."""
    return os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _error(kind: str, reason: str) -> VeltairError:
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, VeltairError):
        return found(reason)
    return VeltairError(f"{kind}: {reason}")

"""`Residency`: a query of a model that has left memory brings it back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from veltair.config import ServerConfig
from veltair.errors import ArtifactError, DeadlineError, OverloadedError, RefusalReason, RefusedError, VeltairError
from veltair.server.repository.artifact_loader import ArtifactLoader
from veltair.server.repository.artifact_sizes import look_at
from veltair.server.repository.folder_reads import FolderReads
from veltair.server.repository.memory_room import MemoryRoom
from veltair.server.repository.model_state import AWAY, ModelState
from veltair.server.repository.served_tenant import ServedTenant

FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0  # after a model could not be brought back
WAITING_SHARE = 4  # one part in so many of Python's requests may wait for the models of a tenant, twice that for all

Key = TypeVar("Key", bound=Hashable)
_log = logging.getLogger("veltair.server")


@dataclass(frozen=True, slots=True)
class FailedReturn:
    """Why a model is not in memory although a query wants it: `FailedReturn("no weights", 1.0, until_ns=5)`."""

    reason: str
    retry_s: float
    until_ns: int  # nobody tries again before


class Residency:
    """Loads a model once for all queries that wait for it; each waits for so long at most, and so many do.

    Where memory has no bound every model is in it, and nobody asks here.

    ::

        async with residency.use(lambda: models.resolve("resnet50"), deadline_ns) as served:
            ...  # it is in memory, and stays there
    """

    def __init__(
        self,
        config: ServerConfig,
        room: MemoryRoom,
        loader: ArtifactLoader,
        reads: FolderReads,
        changing: asyncio.Lock,
    ) -> None:
        """`changing`: held by whoever changes what is served."""
        self.came_back = Counter[str]()  # how often models of a tenant have
        self._room, self._loader, self._reads, self._changing = room, loader, reads, changing
        self._wait_ns = int(config.model_wait_s * 1e9)
        self._most_waiting = max(1, config.limits.unplanned_requests // WAITING_SHARE)
        self._waiting = Counter[str]()  # queries by tenant
        self._returning: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._failed: dict[tuple[str, str], FailedReturn] = {}
        self._closed = False

    @asynccontextmanager
    async def use(self, resolve: Callable[[], ServedTenant], deadline_ns: int | None) -> AsyncIterator[ServedTenant]:
        """What `resolve` finds, in memory until the `with` ends.

        Raises what it raises, and RefusedError where the model cannot be in memory in time.
        """
        served, room = resolve(), self._room
        give_up_ns = time.monotonic_ns() + self._wait_ns
        while not served.resident:
            with _counted(room.using, served.key):  # once it is back it stays until this query goes on
                await self._wait_for(served, give_up_ns, deadline_ns)
                served = resolve()
        with _counted(room.using, served.key):
            try:
                yield served
            finally:
                room.used(served, time.monotonic_ns())

    @property
    def waiting(self) -> int:
        """Queries that wait for a model."""
        return self._waiting.total()

    def state_away(self, served: ServedTenant) -> ModelState:
        """The state of a model that is not in memory; with the reason where it could not be brought back last time."""
        failed = self._failed.get(served.key)
        return AWAY if failed is None else ModelState("UNAVAILABLE", failed.reason)

    def forget_failure(self, served: ServedTenant) -> None:
        """It has been loaded."""
        self._failed.pop(served.key, None)

    async def bring_back(self, served: ServedTenant) -> None:
        """Load a model that has left memory. Whoever calls it holds the lock. Raises VeltairError."""
        engine, path = self._room.engine, served.artifact.path
        assert engine is not None
        if served.resident or served not in engine.models.all():  # something else has happened meanwhile
            return
        found = await self._reads.run(look_at, path)
        if found.digest != served.artifact.digest:
            raise ArtifactError(f"{path}: is not what it was when it was loaded; load it again")
        await self._room.make_room(found, batching=served.batching, what=served.name)
        begin_ns = time.monotonic_ns()
        artifact = await self._loader.load(path)
        back = replace(served, artifact=artifact)
        try:
            if artifact.digest != found.digest:
                raise ArtifactError(f"{path}: has changed while it was loaded")
            await engine.load(back)
        except BaseException:
            await self._loader.release(artifact)
            raise
        load_ns = time.monotonic_ns() - begin_ns
        self._room.loaded(back, load_ns)
        self.forget_failure(served)
        self.came_back[served.name] += 1
        _log.info("%s %s is back in memory after %.2f s", *served.key, load_ns / 1e9)

    async def close(self) -> None:
        """Give up what is on its way: those who wait for it are refused."""
        self._closed = True
        tasks = list(self._returning.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for(self, served: ServedTenant, give_up_ns: int, deadline_ns: int | None) -> None:
        name, now_ns = served.name, time.monotonic_ns()
        if self._closed:
            raise OverloadedError(RefusalReason.DRAINING)
        if (failed := self._failed.get(served.key)) is not None and now_ns < failed.until_ns:
            raise OverloadedError(RefusalReason.NOT_RESIDENT)
        if self._waiting[name] >= min(self._most_waiting, served.share.slots):
            raise OverloadedError(RefusalReason.SLOTS)
        if self.waiting >= 2 * self._most_waiting:
            raise OverloadedError(RefusalReason.SLOTS)
        if (returning := self._returning.get(served.key)) is None:
            returning = self._returning[served.key] = asyncio.create_task(self._return(served))
            if deadline_ns is not None and now_ns + self._room.load_ns.get(served.artifact.digest, 0) > deadline_ns:
                raise OverloadedError(RefusalReason.NOT_RESIDENT)  # it would wait in vain; a later one finds the model
        until_ns = give_up_ns if deadline_ns is None else min(give_up_ns, deadline_ns)
        with _counted(self._waiting, name):
            await asyncio.wait([returning], timeout=max(0, until_ns - now_ns) / 1e9)
        if not returning.done():
            late = deadline_ns is not None and deadline_ns <= give_up_ns
            raise DeadlineError(RefusalReason.DEADLINE) if late else OverloadedError(RefusalReason.NOT_RESIDENT)
        if returning.cancelled():
            raise OverloadedError(RefusalReason.DRAINING)
        if (error := returning.exception()) is not None:
            raise error

    async def _return(self, served: ServedTenant) -> None:
        """Raises RefusedError."""
        try:
            async with self._changing:
                await self.bring_back(served)
        except RefusedError as error:
            _log.warning("%s %s is not back in memory: %s", *served.key, error)
            raise
        except (VeltairError, OSError, MemoryError) as error:
            before = self._failed.get(served.key)
            retry_s = FIRST_RETRY_S if before is None else min(2 * before.retry_s, LONGEST_RETRY_S)
            reason = str(error).replace(str(served.artifact.path), served.name)
            self._failed[served.key] = FailedReturn(reason, retry_s, time.monotonic_ns() + int(retry_s * 1e9))
            _log.error("%s %s is not back in memory: %s; next try in %.0f s", *served.key, error, retry_s)
            raise OverloadedError(RefusalReason.NOT_RESIDENT) from None
        finally:
            del self._returning[served.key]


@contextmanager
def _counted(counts: Counter[Key], key: Key) -> Iterator[None]:
    counts[key] += 1
    try:
        yield
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]

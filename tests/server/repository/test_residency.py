"""Who waits for a model that has left memory, for how long, and who is refused at once. Nothing is loaded here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from in_process_front import MANIFEST

from veltair.config import LimitsConfig, ServerConfig
from veltair.errors import OverloadedError, RefusalReason, RefusedError
from veltair.profiles.artifact.sealed_artifact import SealedArtifact, SealedFiles
from veltair.server.ipc.tenant_share import TenantShare
from veltair.server.repository.artifact_loader import ArtifactLoader
from veltair.server.repository.folder_reads import FolderReads
from veltair.server.repository.live_models import LiveModels
from veltair.server.repository.memory_room import MemoryRoom
from veltair.server.repository.model_state import AWAY, ModelState
from veltair.server.repository.residency import Residency
from veltair.server.repository.served_tenant import ServedTenant
from veltair.types import QoSTarget

SECOND_NS = 1_000_000_000


def away(name: str, slots: int = 100) -> ServedTenant:
    artifact = SealedArtifact(Path("/nowhere"), MANIFEST, name, SealedFiles(-1, -1, -1))
    return ServedTenant(name, "1", artifact, QoSTarget(10), 1, batching=False, share=TenantShare(slots=slots))


class Engine:
    """Knows models, and runs none."""

    numbered = None

    def __init__(self, *served: ServedTenant) -> None:
        self.models = LiveModels(served)

    async def load(self, served: ServedTenant) -> None:
        raise NotImplementedError

    async def unload(self, served: ServedTenant) -> None:
        raise NotImplementedError


class Waiting:
    """While `changing` is held, nothing comes back."""

    def __init__(self, *served: ServedTenant, wait_s: float = 1000.0) -> None:
        limits = LimitsConfig(unplanned_requests=16)  # 4 may wait for a tenant, 8 for all
        config = ServerConfig(max_resident_bytes=1, model_wait_s=wait_s, limits=limits, workers=1)
        loader, self.changing = ArtifactLoader(hung_s=60.0), asyncio.Lock()
        self.room = MemoryRoom(config, loader, FolderReads())
        self.room.engine = Engine(*served)
        self.residency = Residency(config, self.room, loader, FolderReads(), self.changing)

    def ask(self, name: str, deadline_ns: int | None = None) -> asyncio.Task[None]:
        engine = self.room.engine
        assert engine is not None

        async def use() -> None:
            async with self.residency.use(lambda: engine.models.resolve(name), deadline_ns):
                raise AssertionError("it cannot be back")

        return asyncio.create_task(use())

    async def reason(self, asked: asyncio.Task[None]) -> RefusalReason:
        with pytest.raises(RefusedError) as caught:
            await asked
        return caught.value.reason


def run(test: Callable[[Waiting], Awaitable[None]], *served: ServedTenant, wait_s: float = 1000.0) -> None:
    async def main() -> None:
        waiting = Waiting(*served, wait_s=wait_s)
        async with waiting.changing:
            await test(waiting)
        await waiting.residency.close()
        assert not waiting.residency.waiting
        assert not waiting.room.using

    asyncio.run(main())


def test_so_many_wait_and_no_more() -> None:
    async def test(it: Waiting) -> None:
        asked = [it.ask("a") for _ in range(4)] + [it.ask("few")] + [it.ask("b") for _ in range(3)]
        await asyncio.sleep(0)
        assert it.residency.waiting == 8
        for name in ("a", "few", "b"):
            assert await it.reason(it.ask(name)) is RefusalReason.SLOTS
        asked[0].cancel()
        await asyncio.gather(asked[0], return_exceptions=True)
        assert it.residency.waiting == 7
        last = it.ask("b")
        await asyncio.sleep(0)
        assert it.residency.waiting == 8
        await it.residency.close()
        assert {await it.reason(each) for each in (*asked[1:], last)} == {RefusalReason.DRAINING}
        assert await it.reason(it.ask("a")) is RefusalReason.DRAINING

    run(test, away("a"), away("few", slots=1), away("b"))


def test_a_wait_ends_with_the_deadline_or_the_servers_bound() -> None:
    async def test(it: Waiting) -> None:
        patient = it.ask("a")
        soon = it.ask("a", time.monotonic_ns() + SECOND_NS // 100)
        assert await it.reason(soon) is RefusalReason.DEADLINE
        assert await it.reason(patient) is RefusalReason.NOT_RESIDENT

    run(test, away("a"), wait_s=0.1)


def test_a_deadline_before_the_end_of_the_load_is_refused_at_once() -> None:
    async def test(it: Waiting) -> None:
        it.room.load_ns["a"] = 1000 * SECOND_NS
        assert await it.reason(it.ask("a", time.monotonic_ns() + 500 * SECOND_NS)) is RefusalReason.NOT_RESIDENT
        assert it.residency._returning  # a later query finds it

    run(test, away("a"))


def test_what_cannot_come_back_is_not_tried_at_each_query() -> None:
    async def main() -> None:
        served = away("a")
        it = Waiting(served)
        for _ in range(3):
            assert await it.reason(it.ask("a")) is RefusalReason.NOT_RESIDENT
        failed = it.residency._failed["a", "1"]
        assert failed.retry_s == 1.0  # the first time
        assert it.residency.state_away(served) == ModelState(
            "UNAVAILABLE", "a: no model artifact there (No such file or directory)"
        )
        it.residency.forget_failure(served)
        assert it.residency.state_away(served) == AWAY
        await it.residency.close()

    asyncio.run(main())


def test_a_wait_for_room_is_no_failure_of_the_model() -> None:
    async def main() -> None:
        served = away("a")
        it = Waiting(served)

        async def full(*_: object, **__: object) -> None:
            raise OverloadedError(RefusalReason.NOT_RESIDENT)

        it.residency.bring_back = full  # type: ignore[method-assign]
        assert await it.reason(it.ask("a")) is RefusalReason.NOT_RESIDENT
        assert it.residency.state_away(served) == AWAY
        await it.residency.close()

    asyncio.run(main())

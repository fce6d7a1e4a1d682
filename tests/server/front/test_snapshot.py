"""The blocks of a snapshot: fetched page by page, with a cursor that goes on when another engine takes over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from veltair.config import ServeConfig, TenantConfig
from veltair.server.engine import block_history
from veltair.server.engine.block_history import BlockHistory
from veltair.server.front.engine_client import EngineClient
from veltair.server.ipc.daemon_events import report_nothing
from veltair.server.ipc.forks.fork_server import ForkServer
from veltair.server.ipc.messages import EngineReady, EngineStatus
from veltair.server.ipc.status_records import BlockRecord
from veltair.server.repository.live_models import LiveModels


class Models(LiveModels):
    """Of an engine that holds none."""

    def memory(self, live: object, workers: int) -> tuple[()]:
        return ()


class Engine:
    """In place of an EngineConnection; a page holds three blocks."""

    pid = 1
    slots_taken = 0

    def __init__(self) -> None:
        self.exited = asyncio.get_running_loop().create_future()
        self.ready = asyncio.get_running_loop().create_future()
        self.ready.set_result(EngineReady(workers=1, cores=(0,)))
        self.history = BlockHistory()
        self.models = Models()
        self.asked: list[int | None] = []

    def run(self, *queries: int) -> None:
        self.history.add([BlockRecord(query, "mlp", 0, 1, (0,), (0,), 1, 2, False, 1.0) for query in queries])

    async def status(self, since: int | None = None) -> EngineStatus:
        self.asked.append(since)
        count = self.history.count
        blocks, cursor = ((), count) if since is None else self.history.page(since)
        return EngineStatus(0, 1.0, "", 0, 0, count, count, 0, 0, 0, 0, 0, {}, (), (), blocks, cursor)


def test_every_block_is_handed_out_once_over_pages_and_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    page = 3 * block_history.encoded_bytes(BlockRecord(1, "mlp", 0, 1, (0,), (0,), 1, 2, False, 1.0))
    monkeypatch.setattr(block_history, "PAGE_BYTES", page)
    monkeypatch.setattr("veltair.server.front.engine_client.EngineConnection", lambda *_: engine)

    async def blocks(client: EngineClient, since: int | None) -> tuple[list[int], int]:
        snapshot = await client.snapshot(since)
        return [block.query for block in snapshot.blocks], snapshot.cursor

    async def scenario() -> None:
        nonlocal engine
        monkeypatch.setattr(ForkServer, "is_ready", lambda forks: True)
        client = EngineClient(
            ServeConfig(tenants=(TenantConfig(name="mlp", artifact="mlp"),)), LiveModels(), None, report_nothing
        )
        engine = Engine()
        await client._start_engine()
        engine.run(*range(7))
        assert await blocks(client, None) == ([], 7)
        assert await blocks(client, 0) == ([0, 1, 2, 3, 4, 5, 6], 7)
        assert engine.asked == [None, 0, 3, 6]
        engine.run(7, 8)
        assert await blocks(client, 7) == ([7, 8], 9)
        engine = Engine()
        await client._start_engine()
        assert await blocks(client, 9) == ([], 9)
        engine.run(10, 11, 12, 13)
        assert await blocks(client, 7) == ([10, 11, 12, 13], 13)  # what the old engine had is gone with it
        assert await blocks(client, 11) == ([12, 13], 13)

    engine: Any = None
    asyncio.run(scenario())

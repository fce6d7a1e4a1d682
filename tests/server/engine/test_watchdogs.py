"""Processes that live and do nothing, and what the server says of itself meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from example_models import LONG_TURNS, mlp_outputs, spin_inputs
from running_engine import block_under_way, living, serve_config, serving, until

from veltair.errors import OverloadedError, QueryError, WorkerDiedError
from veltair.server.front.engine_client import EngineClient
from veltair.server.front.monitor.event_history import EventHistory

pytestmark = pytest.mark.slow

SOME_TURNS = LONG_TURNS // 8  # a second or so
X = np.random.default_rng(1).standard_normal((5, 16), dtype=np.float32)


async def pids(client: EngineClient) -> list[int]:
    return [worker.pid for worker in (await client.snapshot()).status.workers]


async def answers(client: EngineClient) -> bool:
    try:
        outputs = (await client.infer("mlp", {"x": X})).outputs
    except QueryError:
        return False
    return bool(np.allclose(outputs["y"], mlp_outputs(X), rtol=1e-4, atol=1e-4))


def test_a_stopped_worker_is_replaced_and_its_query_fails(artifacts: Path) -> None:
    async def scenario() -> None:
        configuration = serve_config(artifacts, "mlp", "spin", workers=1, spare_workers=0, hung_block_s=0.5)
        async with serving(configuration) as client:
            assert await answers(client)
            (worker,) = await pids(client)
            os.kill(worker, signal.SIGSTOP)
            with pytest.raises(WorkerDiedError):
                await client.infer("mlp", {"x": X})
            assert not client.ready  # nobody is there to serve

            async def served() -> bool:
                return client.ready and await answers(client)

            await until("another worker", served)
            assert not living(worker) and (await pids(client)) != [worker]
            assert (await client.snapshot()).status.worker_deaths == 1

    asyncio.run(scenario())


def test_a_stopped_worker_that_nothing_is_asked_of_is_replaced(artifacts: Path) -> None:
    """The one used last gets the next query, so the other would be noticed only once both are needed."""

    async def scenario() -> None:
        configuration = serve_config(
            artifacts, "mlp", "spin", workers=2, spare_workers=0, policy="fcfs", hung_block_s=3
        )
        async with serving(configuration) as client:
            query = asyncio.create_task(client.infer("spin", spin_inputs(SOME_TURNS)))
            used = (await block_under_way(client, "spin")).worker
            await query
            (spare,) = {*await pids(client)} - {used}
            os.kill(spare, signal.SIGSTOP)

            async def replaced() -> bool:
                assert await answers(client)
                return not living(spare) and len({*await pids(client)} - {spare}) == 2

            await until("another spare worker", replaced)
            assert used in await pids(client)

    asyncio.run(scenario())


def test_a_long_block_has_ten_times_what_it_was_predicted(artifacts: Path) -> None:
    """The watchdog ends a block of the spin model that was told to turn for seconds."""

    async def scenario() -> None:
        async with serving(serve_config(artifacts, "spin", "mlp", workers=2, hung_block_s=0.5)) as client:
            query = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
            await block_under_way(client, "spin")
            with pytest.raises(WorkerDiedError):
                await query
            assert await answers(client)

    asyncio.run(scenario())


def test_a_stopped_engine_is_not_ready_and_is_replaced(artifacts: Path) -> None:
    events = EventHistory()

    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", hung_engine_s=1.5), events.add) as client:
            assert client.ready and await answers(client)
            before = (await client.snapshot()).engine_pid
            workers = await pids(client)
            os.kill(before, signal.SIGSTOP)
            stopped = time.monotonic()
            waiting = asyncio.create_task(client.infer("mlp", {"x": X}))

            async def known() -> bool:
                return not client.ready

            await until("the front to notice", known)
            with pytest.raises(WorkerDiedError, match="engine"):
                await waiting
            assert time.monotonic() - stopped >= 1.5

            async def back() -> bool:
                return client.ready and await answers(client)

            await until("another engine", back)
            after = await client.snapshot()
            assert after.engine_pid != before and after.engine_restarts == 1
            told = [event["kind"] for event in events.since(0)]
            assert told == ["engine_hung", "engine_died", "engine_restarted"]
            assert not [pid for pid in (before, *workers) if living(pid)]

    asyncio.run(scenario())


def test_without_a_worker_the_server_is_not_ready(artifacts: Path, tmp_path: Path) -> None:
    shutil.copytree(artifacts / "mlp", tmp_path / "mlp")

    async def scenario() -> None:
        async with serving(serve_config(tmp_path, "mlp", spare_workers=0)) as client:
            assert await answers(client)
            (tmp_path / "mlp" / "manifest.json").write_bytes(b"{}")  # no worker can start any more
            for worker in await pids(client):
                os.kill(worker, signal.SIGKILL)

            async def unready() -> bool:
                return not client.ready

            await until("the front to know that no worker is left", unready)
            with pytest.raises(OverloadedError):
                await client.infer("mlp", {"x": X})
            shutil.copyfile(artifacts / "mlp" / "manifest.json", tmp_path / "mlp" / "manifest.json")

            async def served() -> bool:
                return client.ready and await answers(client)

            await until("workers again", served)

    asyncio.run(scenario())

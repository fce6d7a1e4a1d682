"""Models that come and go in a real engine with real workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from example_models import mlp_outputs, spin_inputs
from model_versions import BROKEN, LAYERS, broken, scaled_mlp
from running_engine import block_under_way, serve_config, serving, until

from veltair.config import TenantConfig
from veltair.errors import QueryError, RequestError, UnknownModelError, VeltairError
from veltair.server.front.engine_client import EngineClient
from veltair.server.repository.model_control import ModelControl
from veltair.server.repository.served_tenant import ServedTenant, served_tenant

pytestmark = pytest.mark.slow

X = np.random.default_rng(5).standard_normal((3, 16), dtype=np.float32)
LONG_TURNS = 20_000_000


async def check(client: EngineClient, path: Path, name: str = "mlp", version: str = "1") -> ServedTenant:
    """A model as `ModelControl` would have it loaded."""
    artifact = await control_of(client).loader.load(path)
    return served_tenant(TenantConfig(name=name, artifact=str(path)), version, artifact, queue_slots=64)


def control_of(client: EngineClient) -> ModelControl:
    assert client.control is not None
    return client.control


async def scale_of(client: EngineClient, name: str = "mlp") -> float:
    """How many times the first version's answer this is."""
    outputs = (await client.infer(name, {"x": X})).outputs["y"]
    return float(np.sum(outputs) / np.sum(mlp_outputs(X)))


@asynccontextmanager
async def asking(client: EngineClient, seen: set[float]) -> AsyncIterator[None]:
    """Queries of mlp one after the other on two tasks; each is answered, and right for one version."""
    stop = False

    async def ask() -> None:
        while not stop:
            seen.add(round(await scale_of(client), 3))

    tasks = [asyncio.create_task(ask()) for _ in range(2)]
    try:
        yield
    finally:
        stop = True
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("spare", [0, 1])
def test_a_new_version_takes_over_and_no_query_is_lost(artifacts: Path, tmp_path: Path, spare: int) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", "spin", spare_workers=spare, queue_slots=64)) as client:
            seen: set[float] = set()
            async with asking(client, seen):
                for version in range(2, 6):
                    path = scaled_mlp(artifacts, tmp_path / str(version), version)
                    before = client.tenants["mlp"]
                    await client.load(await check(client, path))
                    assert round(await scale_of(client), 3) == version**LAYERS
                    if before is not client.tenants["mlp"]:
                        await client.unload(before)
            assert seen <= {float(version**LAYERS) for version in range(1, 6)}
            status = (await client.snapshot()).status
            assert status.worker_deaths == 0
            assert status.tenants["mlp"].failed == 0
            assert set(status.tenants) == {"mlp", "spin"}

    asyncio.run(scenario())


def test_a_model_leaves_once_its_last_query_has_ended(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", "spin", queue_slots=64)) as client:
            query = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
            await block_under_way(client, "spin")
            unloading = asyncio.create_task(client.unload(client.tenants["spin"]))
            assert round(await scale_of(client), 3) == 1
            with pytest.raises(UnknownModelError):
                await client.infer("spin", spin_inputs(1))
            assert not unloading.done()
            assert (await query).outputs["state"].shape == (1,)
            await unloading
            back = await check(client, artifacts / "spin", "spin")
            await client.load(back)
            assert (await client.infer("spin", spin_inputs(1))).outputs["state"].shape == (1,)

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [how for how in BROKEN if how in ("other instructions", "deadly", "no symbol")])
def test_a_model_that_cannot_be_loaded_costs_the_others_nothing(artifacts: Path, tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", queue_slots=64, max_models=2)) as client:
            seen: set[float] = set()
            async with asking(client, seen):
                for number in range(2):
                    bad = await check(client, broken(artifacts, tmp_path / str(number), how), "bad")
                    with pytest.raises(VeltairError):
                        await client.load(bad)
                    with pytest.raises(UnknownModelError):
                        await client.infer("bad", {"x": X})
                await until("its number free", lambda: free_number(client))
                good = await check(client, scaled_mlp(artifacts, tmp_path / "good", 2), "good")
                await client.load(good)
                assert round(await scale_of(client, "good"), 3) == 2**LAYERS
                with pytest.raises(RequestError, match="2 models are served, and no more"):
                    await client.load(await check(client, artifacts / "mlp", "third"))
            assert seen == {1.0}

    asyncio.run(scenario())


async def free_number(client: EngineClient) -> bool:
    """Whether no worker holds what failed any more."""
    assert client._engine is not None
    return len(client._engine.models.specs) < client._engine.models.capacity


def test_an_engine_that_dies_meanwhile_comes_back_with_what_was_live(artifacts: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", queue_slots=64)) as client:
            await client.load(await check(client, scaled_mlp(artifacts, tmp_path / "2", 2), version="2"))
            coming = await check(client, artifacts / "spin", "spin")
            loading = asyncio.create_task(client.load(coming))
            await asyncio.sleep(0)  # it has asked the engine
            os.kill((await client.snapshot()).engine_pid, signal.SIGKILL)
            with pytest.raises(QueryError, match="before the model was loaded"):
                await loading
            await until("an engine again", lambda: ready(client))
            assert client.models.versions("mlp") == ["1", "2"]
            assert round(await scale_of(client), 3) == 2**LAYERS
            first = client.models.resolve("mlp", "1")
            assert np.allclose((await client.infer(first, {"x": X})).outputs["y"], mlp_outputs(X), atol=1e-4)
            await client.load(coming)

    asyncio.run(scenario())


async def ready(client: EngineClient) -> bool:
    return client.ready


def test_a_worker_that_starts_meanwhile_holds_what_the_others_hold(artifacts: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", queue_slots=64)) as client:
            workers = [worker.pid for worker in (await client.snapshot()).status.workers]
            loading = asyncio.create_task(
                client.load(await check(client, scaled_mlp(artifacts, tmp_path / "2", 2), version="2"))
            )
            os.kill(workers[0], signal.SIGKILL)
            await loading
            answers = await asyncio.gather(*(scale_of(client) for _ in range(40)))
            assert {round(answer, 3) for answer in answers} == {2.0**LAYERS}

    asyncio.run(scenario())


def test_memory_does_not_grow_with_loads(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", queue_slots=64)) as client:
            sizes = []
            for number in range(60):
                spin = await check(client, artifacts / "spin", "spin")
                await client.load(spin)
                await client.infer("spin", spin_inputs(1))
                await client.unload(spin)
                if number in (19, 59):
                    status = (await client.snapshot()).status
                    sizes.append([*map(resident_kb, [worker.pid for worker in status.workers])])
            assert status.worker_deaths == 0
            assert all(after - before < 4096 for before, after in zip(*sizes, strict=True)), sizes

    asyncio.run(scenario())


def resident_kb(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])

"""Queries that run as one batch on a real worker: each its own answer, whatever befalls the others."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from example_models import LONG_TURNS, SPIN_LAYERS, spin_inputs, spin_state
from example_models import mlp_outputs as expected
from running_engine import block_under_way, serve_config, serving, until
from tensor_pools import new_pool

from veltair.cli import main
from veltair.config import ServeConfig
from veltair.errors import WorkerDiedError
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.server.front.engine_client import EngineClient
from veltair.server.front.query_result import QueryResult
from veltair.server.ipc.block_orders import Members
from veltair.server.ipc.status_records import Executions, TenantStatus
from veltair.server.worker.batch_buffers import BatchBuffers

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(5)


def samples(count: int) -> np.ndarray:
    return RNG.standard_normal((count, 16), dtype=np.float32)


def spins(turns: int, seed: int) -> dict[str, np.ndarray]:
    return {name: values[None] for name, values in spin_inputs(turns, seed).items()}


def patient(artifacts: Path, *names: str, batching: bool = True, **server: Any) -> ServeConfig:
    """One worker, and targets that nothing here misses."""
    config = serve_config(artifacts, *names, **{"policy": "veltair", "workers": 1, **server})
    tenants = tuple(msgspec.structs.replace(tenant, qos_ms=600_000.0, batching=batching) for tenant in config.tenants)
    return msgspec.structs.replace(config, tenants=tenants)


async def counts(client: EngineClient, tenant: str) -> TenantStatus:
    return (await client.snapshot()).status.tenants[tenant]


async def waiting(client: EngineClient, tenant: str, queries: int) -> None:
    async def look() -> bool:
        return (await counts(client, tenant)).waiting == queries

    await until(f"{queries} queries of {tenant} wait", look)


def right(answer: QueryResult, x: np.ndarray) -> None:
    np.testing.assert_allclose(answer.outputs["y"], expected(x), rtol=1e-4, atol=1e-4)


async def behind_a_long_one(client: EngineClient, sizes: list[int]) -> tuple[list[np.ndarray], list[asyncio.Task]]:
    """Queries that wait since another holds the only worker, which is then let go."""
    long = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
    await block_under_way(client, "spin")
    xs = [samples(size) for size in sizes]
    tasks = []
    for i, x in enumerate(xs, 1):  # one by one, so that they wait in this order
        tasks.append(asyncio.create_task(client.infer("mlp", {"x": x}, traced=True)))
        await waiting(client, "mlp", i)
    long.cancel()
    await asyncio.wait([long])
    return xs, tasks


def test_members_of_different_sizes_get_their_own_rows(artifacts: Path, tmp_path: Path) -> None:
    config = patient(artifacts, "spin", "mlp", event_log=str(tmp_path / "log"))

    async def scenario() -> None:
        async with serving(config) as client:
            xs, tasks = await behind_a_long_one(client, [1, 3, 2, 1, 1, 5, 2])
            answers = await asyncio.gather(*tasks)
            for x, answer in zip(xs, answers, strict=True):
                right(answer, x)
            assert [answer.blocks[0].queries for answer in answers] == [5, 5, 5, 5, 5, 2, 2]
            assert len({answer.blocks[0].query for answer in answers}) == 2
            assert (await counts(client, "mlp")).batches == {5: 1, 2: 1}
            done = {each.blocks[0].query: each.execute_ns for each in answers}
            five, two = done.values()
            assert (await counts(client, "mlp")).executions == {"1": {8: Executions(1, five), 7: Executions(1, two)}}
            snapshot = await client.snapshot(since=0)
            assert snapshot.held == 0
            ran = [block for block in snapshot.blocks if block.tenant == "mlp"]
            assert len(ran) == len({(block.query, block.start) for block in ran})  # each listed once
            for answer in answers:  # each waited from its own arrival, and ran in the blocks of its batch
                own = [block for block in ran if block.query == answer.blocks[0].query]
                assert list(answer.blocks) == own
                assert answer.execute_ns == sum(block.elapsed_ns for block in own)
            waits = [answer.queue_ns for answer in answers]
            assert waits[:5] == sorted(waits[:5], reverse=True) and waits[5] > waits[6]
            layers = Counter[int]()
            for block in ran:
                layers.update(list(block.versions) * block.queries)
            assert (await counts(client, "mlp")).versions == layers

    asyncio.run(scenario())
    assert main(["replay", str(tmp_path / "log")]) == 0


@pytest.mark.parametrize("switch", [{"batching": False}, {"policy": "fcfs"}])
def test_without_batching_queries_run_one_by_one(artifacts: Path, switch: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with serving(patient(artifacts, "spin", "mlp", **switch)) as client:
            xs, tasks = await behind_a_long_one(client, [1, 3, 2])
            for x, answer in zip(xs, await asyncio.gather(*tasks), strict=True):
                right(answer, x)
                assert {block.queries for block in answer.blocks} == {1}
            status = await counts(client, "mlp")
            assert status.batches == {1: 3}
            assert {size: each.count for size, each in status.executions["1"].items()} == {1: 1, 2: 1, 3: 1}

    asyncio.run(scenario())


async def batch_under_way(client: EngineClient, turns: int) -> tuple[int, list[asyncio.Task]]:
    """A batch of three spinning queries, seeds 1 to 3, in execution, and on which worker."""
    first = asyncio.create_task(client.infer("spins", spins(LONG_TURNS, 0)))
    await block_under_way(client, "spins")
    tasks = []
    for seed in (1, 2, 3):
        tasks.append(asyncio.create_task(client.infer("spins", spins(turns, seed))))
        await waiting(client, "spins", seed)
    first.cancel()
    await asyncio.wait([first])

    async def started() -> bool:
        return (await counts(client, "spins")).batches == {1: 1, 3: 1}

    await until("the batch", started)
    return (await block_under_way(client, "spins")).worker, tasks


async def emptied(client: EngineClient) -> None:
    async def look() -> bool:
        return (await client.snapshot()).held == 0

    await until("every slot free", look)


def test_a_killed_worker_costs_each_member_one_error(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(patient(artifacts, "spins")) as client:
            worker, tasks = await batch_under_way(client, LONG_TURNS)
            os.kill(worker, signal.SIGKILL)
            errors = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(error, WorkerDiedError) and "SIGKILL" in str(error) for error in errors)
            status = (await client.snapshot()).status
            assert (status.tenants["spins"].failed, status.worker_deaths) == (3, 1)
            answer = await client.infer("spins", spins(2, 7))
            assert answer.outputs["state"].tolist() == [[spin_state(2, 7)]]
            assert (await client.snapshot()).held == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("gone", [[0], [1], [0, 2]])
def test_one_cancelled_in_the_middle_leaves_the_others_their_answers(artifacts: Path, gone: list[int]) -> None:
    async def scenario() -> None:
        turns = 5_000_000  # a few hundred ms in all
        async with serving(patient(artifacts, "spins")) as client:
            _, tasks = await batch_under_way(client, turns)
            for index in gone:
                tasks[index].cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            for index, answer in enumerate(answers):
                if index in gone:
                    assert isinstance(answer, asyncio.CancelledError)
                else:
                    assert isinstance(answer, QueryResult)
                    assert answer.outputs["state"].tolist() == [[spin_state(turns, 1 + index)]]
            await emptied(client)
            counted = await counts(client, "spins")
            assert (counted.cancelled, counted.done) == (1 + len(gone), 3 - len(gone))

    asyncio.run(scenario())


def test_a_batch_that_nobody_waits_for_stops(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(patient(artifacts, "spins")) as client:
            _, tasks = await batch_under_way(client, LONG_TURNS)
            for index in (1, 0, 2):
                tasks[index].cancel()
            await asyncio.wait(tasks)
            await emptied(client)
            snapshot = await client.snapshot(since=0)
            assert snapshot.status.tenants["spins"].cancelled == 4
            assert snapshot.status.tenants["spins"].versions == {}
            assert snapshot.status.worker_deaths == 0
            assert snapshot.blocks[-1].stop < SPIN_LAYERS

    asyncio.run(scenario())


def test_gathering_refuses_what_does_not_fit(artifacts: Path) -> None:
    manifest = load_artifact(artifacts / "mlp").manifest
    batch = BatchBuffers(new_pool([manifest], 2), 0, manifest)
    for copy in (batch.gather, batch.scatter):
        for parts in ([(0, 5), (1, 4)], [(0, 0), (1, 1)]):
            with pytest.raises(ValueError, match="at most 8 samples"):
                copy(Members.of(parts).packed)
        with pytest.raises(IndexError, match="slots below 2"):
            copy(Members.of([(0, 1), (2, 1)]).packed)

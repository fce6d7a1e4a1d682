"""Draining, ending and restarting the engine process; artifacts that cannot be served."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest
import uvloop
from example_models import LONG_TURNS, mlp_outputs, spin_inputs, spin_state
from running_engine import WAIT_S, block_under_way, living, serve_config, serving, until

from veltair.config import ServeConfig
from veltair.errors import ArtifactError, ConfigError, OverloadedError, QueryError, WorkerDiedError
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.server.front.engine_client import EngineClient
from veltair.server.front.query_result import QueryResult
from veltair.server.ipc.messages import ConfigureEngine

pytestmark = pytest.mark.slow


X = np.random.default_rng(1).standard_normal((5, 16), dtype=np.float32)


async def pids(client: EngineClient) -> list[int]:
    return [worker.pid for worker in (await client.snapshot()).status.workers]


def right(answer: QueryResult) -> bool:
    return bool(np.allclose(answer.outputs["y"], mlp_outputs(X), rtol=1e-4, atol=1e-4))


def test_drain_answers_every_accepted_query_and_leaves_no_process(artifacts: Path) -> None:
    async def scenario() -> None:
        client = await EngineClient.start(serve_config(artifacts, "spin", "mlp"))
        processes = [(await client.snapshot()).engine_pid, *await pids(client)]
        accepted = [asyncio.create_task(client.infer("spin", spin_inputs(1000, seed=2))) for _ in range(10)]
        accepted += [asyncio.create_task(client.infer("mlp", {"x": X})) for _ in range(20)]
        await asyncio.sleep(0)  # each task runs up to its wait for an answer: all are accepted
        draining = asyncio.create_task(client.drain())
        await asyncio.sleep(0)
        assert not client.ready
        with pytest.raises(OverloadedError, match="shutting down"):
            await client.infer("mlp", {"x": X})
        answers = await asyncio.gather(*accepted)
        await draining
        assert all(a.outputs["state"].tolist() == [spin_state(1000, 2)] for a in answers[:10])
        assert all(right(a) for a in answers[10:])
        assert not [pid for pid in processes if living(pid)]

    asyncio.run(scenario())


def test_an_engine_that_has_ended_gives_no_status(artifacts: Path) -> None:
    """Its heartbeat would wait for it, and call the next engine not ready meanwhile."""

    async def scenario() -> None:
        client = await EngineClient.start(serve_config(artifacts, "mlp"))
        engine = client._engine
        assert engine is not None
        os.kill(engine.pid, signal.SIGKILL)
        await asyncio.shield(engine.exited)
        with pytest.raises(OverloadedError):
            await asyncio.wait_for(engine.status(), WAIT_S)
        await client.shut_down()

    asyncio.run(scenario())


def test_drain_gives_up_after_its_time(artifacts: Path) -> None:
    async def scenario() -> None:
        client = await EngineClient.start(serve_config(artifacts, "spin", drain_timeout_s=0.05))
        processes = [(await client.snapshot()).engine_pid, *await pids(client)]
        query = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
        await block_under_way(client, "spin")
        await client.drain()
        with pytest.raises(QueryError, match="shut down before"):
            await query
        assert not [pid for pid in processes if living(pid)]

    asyncio.run(scenario())


def test_a_second_call_cuts_the_drain_short(artifacts: Path) -> None:
    async def scenario() -> None:
        client = await EngineClient.start(serve_config(artifacts, "spin", drain_timeout_s=1000))
        engine = (await client.snapshot()).engine_pid
        query = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
        await block_under_way(client, "spin")
        draining = asyncio.create_task(client.drain())
        await asyncio.sleep(0)
        await client.shut_down()
        await draining
        with pytest.raises(QueryError, match="shut down before"):
            await query
        assert not living(engine)

    asyncio.run(scenario())


def test_the_client_runs_on_uvloop_too(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", "spin")) as client:
            answers = await asyncio.gather(*(client.infer("mlp", {"x": X}) for _ in range(20)))
            assert all(map(right, answers))
            query = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
            running = await block_under_way(client, "spin")
            os.kill(running.worker, signal.SIGKILL)
            with pytest.raises(WorkerDiedError):
                await query

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def test_an_engine_that_fails_says_of_what_and_comes_back(artifacts: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp")) as client:
            engine = client._engine
            assert engine is not None
            engine.send(ConfigureEngine.of(client.config.server))  # as no front does
            assert await engine.exited == 1

            async def back() -> bool:
                return client.ready

            await until("an engine again", back)
            assert right(await client.infer("mlp", {"x": X}))

    asyncio.run(scenario())
    told = capfd.readouterr().err
    assert "ERROR veltair: the engine fails" in told
    assert told.count("InvariantError: the engine is configured once") == told.count("Traceback") == 1


def test_a_killed_engine_fails_its_queries_takes_its_workers_along_and_comes_back(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "spin", "mlp")) as client:
            await client.infer("mlp", {"x": X})
            before = await client.snapshot(since=0)
            assert before.cursor == len(before.blocks) > 0
            workers = await pids(client)
            query = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
            await block_under_way(client, "spin")
            os.kill(before.engine_pid, signal.SIGKILL)
            with pytest.raises(WorkerDiedError, match="engine"):
                await query
            with pytest.raises(OverloadedError, match="restarting"):
                await client.infer("mlp", {"x": X})

            async def back() -> bool:
                return client.ready

            await until("an engine again", back)
            assert right(await client.infer("mlp", {"x": X}))
            after = await client.snapshot(since=before.cursor)
            assert after.cursor - before.cursor == len(after.blocks) > 0  # none of the old engine's
            assert {block.tenant for block in after.blocks} == {"mlp"}
            assert after.engine_pid != before.engine_pid
            assert after.engine_restarts == 1

            async def gone() -> bool:
                return not any(map(living, workers))

            await until("the old workers gone", gone)

    asyncio.run(scenario())


def test_signals_to_the_group_are_left_to_the_front(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp")) as client:
            for pid in [(await client.snapshot()).engine_pid, *await pids(client)]:
                os.kill(pid, signal.SIGINT)
                os.kill(pid, signal.SIGTERM)
            assert right(await client.infer("mlp", {"x": X}))
            status = (await client.snapshot()).status
            assert status.worker_deaths == 0

    asyncio.run(scenario())


def altered(source: Path, target: Path, **changes: object) -> Path:
    """A copy of an artifact with other manifest entries."""
    shutil.copytree(source, target)
    manifest = msgspec.json.decode((target / "manifest.json").read_bytes())
    (target / "manifest.json").write_bytes(msgspec.json.encode(manifest | changes))
    return target


def refused(configuration: ServeConfig, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        asyncio.run(EngineClient.start(configuration))


def test_artifacts_and_settings_that_cannot_be_served_are_refused_at_the_start(artifacts: Path, tmp_path: Path) -> None:
    shutil.copytree(artifacts / "mlp", tmp_path / "short")
    with (tmp_path / "short/kernels.so").open("r+b") as file:
        file.truncate(1000)
    refused(serve_config(tmp_path, "short"), ArtifactError, "truncated or altered")
    refused(serve_config(tmp_path, "none"), ArtifactError, "no model artifact")
    altered(artifacts / "mlp", tmp_path / "alien", features=["no_such_isa"])
    refused(serve_config(tmp_path, "alien"), ArtifactError, "no_such_isa")
    manifest = load_artifact(artifacts / "crash").manifest
    doomed = [msgspec.structs.replace(port, low=1, high=1) for port in manifest.inputs]
    altered(artifacts / "crash", tmp_path / "doomed", inputs=doomed)  # the warm-up already reads elsewhere
    refused(serve_config(tmp_path, "doomed"), ArtifactError, "workers cannot start.*SIGSEGV")
    entry = msgspec.to_builtins(manifest.layers[0])
    entry["versions"][0]["symbol"] = "absent"
    altered(artifacts / "crash", tmp_path / "symbolless", layers=[entry, *manifest.layers[1:]])
    refused(serve_config(tmp_path, "symbolless"), ArtifactError, "cannot be loaded.*absent")
    refused(serve_config(artifacts, "mlp", policy="chaos"), ConfigError, "chaos")
    refused(serve_config(artifacts, "mlp", cores=4096), ConfigError, "4096 asked for")

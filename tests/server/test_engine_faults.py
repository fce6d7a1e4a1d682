"""Dying workers, a dying engine, shutting down, artifacts that cannot be served, the event log."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import uvloop

from veltair.cli import main
from veltair.config import ServeConfig
from veltair.errors import ArtifactError, ConfigError, OverloadedError, QueryError, WorkerDiedError
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.scheduler.event_log.header import load_header
from veltair.server.front.engine_client import EngineClient
from veltair.server.front.engine_connection import QueryResult

from .conftest import (
    LONG_TURNS,
    block_under_way,
    living,
    mlp_outputs,
    serving,
    spin_inputs,
    spin_state,
    until,
)

pytestmark = pytest.mark.slow

Configure = Callable[..., ServeConfig]
X = np.random.default_rng(1).standard_normal((5, 16), dtype=np.float32)


async def pids(client: EngineClient) -> list[int]:
    return [worker.pid for worker in (await client.snapshot()).status.workers]


async def replaced(client: EngineClient, dead: int) -> None:
    """As many loaded workers as before, the dead one not among them."""
    count = len(await pids(client))

    async def look() -> bool:
        workers = (await client.snapshot()).status.workers
        loaded = [w for w in workers if w.state != "starting"]
        return dead not in [w.pid for w in workers] and len(loaded) == count

    await until("another worker in the dead one's place", look)


def right(answer: QueryResult) -> bool:
    return bool(np.allclose(answer.outputs["y"], mlp_outputs(X), rtol=1e-4, atol=1e-4))


@pytest.mark.parametrize("spare_workers", [0, 1])
def test_a_killed_worker_costs_its_own_query_only_and_is_replaced(configure: Configure, spare_workers: int) -> None:
    async def scenario() -> None:
        async with serving(configure("spin", "mlp", policy="fcfs", spare_workers=spare_workers)) as client:
            victim = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
            running = await block_under_way(client, "spin")
            others = [asyncio.create_task(client.infer("mlp", {"x": X})) for _ in range(20)]
            os.kill(running.worker, signal.SIGKILL)
            with pytest.raises(WorkerDiedError, match="SIGKILL"):
                await victim
            assert all(right(answer) for answer in await asyncio.gather(*others))
            await replaced(client, running.worker)
            status = (await client.snapshot()).status
            assert status.worker_deaths == 1
            assert (status.tenants["spin"].failed, status.tenants["mlp"].done) == (1, 20)
            assert (await client.snapshot()).held == 0
            both = await asyncio.gather(*(client.infer("spin", spin_inputs(2, seed)) for seed in (1, 2)))
            assert [a.outputs["state"][0] for a in both] == [spin_state(2, 1), spin_state(2, 2)]

    asyncio.run(scenario())


def test_every_worker_killed_at_once_while_queries_wait(configure: Configure) -> None:
    async def scenario() -> None:
        async with serving(configure("spin", "mlp", policy="fcfs")) as client:
            victim = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
            await block_under_way(client, "spin")
            others = [asyncio.create_task(client.infer("mlp", {"x": X})) for _ in range(10)]
            killed = set(await pids(client))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerDiedError):
                await victim
            answers = await asyncio.gather(*others, return_exceptions=True)
            async with asyncio.timeout(30):
                while killed & set(await pids(client)):  # the engine has not heard of every death yet
                    await asyncio.sleep(0)
            lost = [a for a in answers if isinstance(a, WorkerDiedError)]
            assert len(lost) <= 2, "more queries were lost than workers"
            assert all(right(a) for a in answers if not isinstance(a, WorkerDiedError))
            assert right(await client.infer("mlp", {"x": X}))

    asyncio.run(scenario())


def test_a_crash_inside_a_kernel_is_one_typed_error(configure: Configure) -> None:
    async def scenario() -> None:
        async with serving(configure("crash", "mlp")) as client:
            results = await asyncio.gather(
                client.infer("crash", spin_inputs(1)),
                *(client.infer("mlp", {"x": X}) for _ in range(10)),
                return_exceptions=True,
            )
            assert isinstance(results[0], WorkerDiedError)
            assert "SIGSEGV" in str(results[0])
            assert all(isinstance(a, QueryResult) and right(a) for a in results[1:])

    asyncio.run(scenario())


def test_drain_answers_every_accepted_query_and_leaves_no_process(configure: Configure) -> None:
    async def scenario() -> None:
        client = await EngineClient.start(configure("spin", "mlp"))
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


def test_drain_gives_up_after_its_time(configure: Configure) -> None:
    async def scenario() -> None:
        client = await EngineClient.start(configure("spin", drain_timeout_s=0.05))
        processes = [(await client.snapshot()).engine_pid, *await pids(client)]
        query = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
        await block_under_way(client, "spin")
        await client.drain()
        with pytest.raises(QueryError, match="shut down before"):
            await query
        assert not [pid for pid in processes if living(pid)]

    asyncio.run(scenario())


def test_a_second_call_cuts_the_drain_short(configure: Configure) -> None:
    async def scenario() -> None:
        client = await EngineClient.start(configure("spin", drain_timeout_s=1000))
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


def test_the_client_runs_on_uvloop_too(configure: Configure) -> None:
    async def scenario() -> None:
        async with serving(configure("mlp", "spin")) as client:
            answers = await asyncio.gather(*(client.infer("mlp", {"x": X}) for _ in range(20)))
            assert all(map(right, answers))
            query = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
            running = await block_under_way(client, "spin")
            os.kill(running.worker, signal.SIGKILL)
            with pytest.raises(WorkerDiedError):
                await query

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def test_a_killed_engine_fails_its_queries_takes_its_workers_along_and_comes_back(configure: Configure) -> None:
    async def scenario() -> None:
        async with serving(configure("spin", "mlp")) as client:
            before = await client.snapshot()
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
            after = await client.snapshot()
            assert after.engine_pid != before.engine_pid
            assert after.engine_restarts == 1

            async def gone() -> bool:
                return not any(map(living, workers))

            await until("the old workers gone", gone)

    asyncio.run(scenario())


def test_signals_to_the_group_are_left_to_the_front(configure: Configure) -> None:
    async def scenario() -> None:
        async with serving(configure("mlp")) as client:
            for pid in [(await client.snapshot()).engine_pid, *await pids(client)]:
                os.kill(pid, signal.SIGINT)
                os.kill(pid, signal.SIGTERM)
            assert right(await client.infer("mlp", {"x": X}))
            status = (await client.snapshot()).status
            assert status.worker_deaths == 0

    asyncio.run(scenario())


def test_no_descriptor_or_process_is_left_behind(configure: Configure) -> None:
    def descriptors(pid: int) -> int:
        gc.collect()  # the memory of a pool that is not used any more keeps a descriptor
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    async def scenario() -> None:
        async with serving(configure("mlp", "spin", spare_workers=0)) as client:
            engine = (await client.snapshot()).engine_pid
            before = descriptors(engine)
            for _ in range(3):
                victim = (await pids(client))[0]
                os.kill(victim, signal.SIGKILL)
                await replaced(client, victim)
            assert descriptors(engine) == before

    asyncio.run(scenario())
    before = descriptors(os.getpid())
    asyncio.run(scenario())
    assert descriptors(os.getpid()) == before


def test_the_event_log_replays_to_the_same_decisions(
    configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "events.jsonl"

    async def scenario() -> None:
        client = await EngineClient.start(configure("mlp", "spin", event_log=str(log), planned_share=0.99))
        running = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
        worker = (await block_under_way(client, "spin")).worker
        await asyncio.gather(*(client.infer("spin", spin_inputs(1)) for _ in range(5)))
        os.kill(worker, signal.SIGKILL)
        await asyncio.wait([running])
        assert isinstance(running.exception(), WorkerDiedError)
        cancelled = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
        await block_under_way(client, "spin")
        cancelled.cancel()
        await asyncio.gather(*(client.infer("mlp", {"x": X}) for _ in range(50)))
        await client.drain()

    asyncio.run(scenario())
    lines = log.read_text().splitlines()
    kinds = {msgspec.json.decode(line)["type"] for line in lines}
    assert kinds >= {"QueryArrived", "BlockFinished", "BlockFailed", "QueryCancelled", "StartBlock", "FinishQuery"}
    assert load_header(lines[0]).scheduler.planned_share == 0.99  # what decisions depend on
    assert main(["replay", str(log)]) == 0
    assert int(capsys.readouterr().out.split(": ")[1].split()[0]) >= 110  # events
    log.write_text("".join(line.replace('"core_set":[0]', '"core_set":[1]') + "\n" for line in lines))
    assert main(["replay", str(log)]) == 1
    assert "the decisions differ: log line" in capsys.readouterr().out


def altered(source: Path, target: Path, **changes: object) -> Path:
    """A copy of an artifact with other manifest entries."""
    shutil.copytree(source, target)
    manifest = msgspec.json.decode((target / "manifest.json").read_bytes())
    (target / "manifest.json").write_bytes(msgspec.json.encode(manifest | changes))
    return target


def refused(configuration: ServeConfig, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        asyncio.run(EngineClient.start(configuration))


def test_artifacts_and_settings_that_cannot_be_served_are_refused_at_the_start(
    configure: Configure, artifacts: Path, tmp_path: Path
) -> None:
    shutil.copytree(artifacts / "mlp", tmp_path / "short")
    with (tmp_path / "short/kernels.so").open("r+b") as file:
        file.truncate(1000)
    refused(configure("short", folder=tmp_path), ArtifactError, "truncated or altered")
    refused(configure("none", folder=tmp_path), ArtifactError, "no model artifact")
    altered(artifacts / "mlp", tmp_path / "alien", features=["no_such_isa"])
    refused(configure("alien", folder=tmp_path), ArtifactError, "no_such_isa")
    manifest = load_artifact(artifacts / "crash").manifest
    doomed = [msgspec.structs.replace(port, low=1, high=1) for port in manifest.inputs]
    altered(artifacts / "crash", tmp_path / "doomed", inputs=doomed)  # the warm-up already reads elsewhere
    refused(configure("doomed", folder=tmp_path), ArtifactError, "workers cannot start.*SIGSEGV")
    entry = msgspec.to_builtins(manifest.layers[0])
    entry["versions"][0]["symbol"] = "absent"
    altered(artifacts / "crash", tmp_path / "symbolless", layers=[entry, *manifest.layers[1:]])
    refused(configure("symbolless", folder=tmp_path), ArtifactError, "cannot be loaded.*absent")
    refused(configure("mlp", policy="chaos"), ConfigError, "chaos")
    refused(configure("mlp", cores=4096), ConfigError, "4096 asked for")


def test_an_artifact_replaced_under_the_daemon_is_not_served_by_new_workers(
    configure: Configure, artifacts: Path, tmp_path: Path
) -> None:
    shutil.copytree(artifacts / "mlp", tmp_path / "mlp")

    async def scenario() -> None:
        async with serving(configure("mlp", folder=tmp_path, spare_workers=0)) as client:
            shutil.rmtree(tmp_path / "mlp")
            altered(artifacts / "mlp", tmp_path / "mlp", tolerance=0.5)
            victim, survivor = await pids(client)
            os.kill(victim, signal.SIGKILL)

            async def failed_twice() -> bool:
                return (await client.snapshot()).status.worker_deaths >= 3

            await until("two replacements that refused to start", failed_twice)
            assert survivor in await pids(client)
            assert right(await client.infer("mlp", {"x": X}))

    asyncio.run(scenario())

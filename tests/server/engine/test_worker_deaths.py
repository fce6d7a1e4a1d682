"""Workers that are killed or crash under load."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from example_models import LONG_TURNS, mlp_outputs, spin_inputs, spin_state
from running_engine import block_under_way, living, process_state, serve_config, serving, until

from veltair.errors import WorkerDiedError
from veltair.server.front.engine_client import EngineClient
from veltair.server.front.monitor.event_history import EventHistory
from veltair.server.front.query_result import QueryResult

pytestmark = pytest.mark.slow


TURNS = 10_000_000  # about 2 ms a layer: long enough to be seen in execution
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
def test_a_killed_worker_costs_its_own_query_only_and_is_replaced(artifacts: Path, spare_workers: int) -> None:
    events = EventHistory()

    async def scenario() -> None:
        async with serving(
            serve_config(artifacts, "spin", "mlp", policy="fcfs", spare_workers=spare_workers), events.add
        ) as client:
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
            (event,) = events.since(0)
            told = f"worker {running.worker} was killed by SIGKILL while it ran a query"
            assert (event["kind"], event["severity"], event["text"]) == ("worker_died", "error", told)
            assert (status.tenants["spin"].failed, status.tenants["mlp"].done) == (1, 20)
            assert (await client.snapshot()).held == 0
            both = await asyncio.gather(*(client.infer("spin", spin_inputs(2, seed)) for seed in (1, 2)))
            assert [a.outputs["state"][0] for a in both] == [spin_state(2, 1), spin_state(2, 2)]

    asyncio.run(scenario())


def test_a_block_that_ended_before_its_worker_was_killed_counts(artifacts: Path) -> None:
    """The engine, which was held up, hears of the end and of the death at the same time."""

    async def scenario() -> None:
        async with serving(serve_config(artifacts, "spin", policy="fcfs", workers=1)) as client:
            await client.infer("spin", spin_inputs(1))
            query = asyncio.create_task(client.infer("spin", spin_inputs(TURNS, 3)))
            running = await block_under_way(client, "spin")
            engine = (await client.snapshot()).engine_pid
            os.kill(engine, signal.SIGSTOP)
            try:
                while process_state(running.worker) != "S":  # it waits for an order
                    await asyncio.sleep(0)
                os.kill(running.worker, signal.SIGKILL)
                while living(running.worker):
                    await asyncio.sleep(0)
            finally:
                os.kill(engine, signal.SIGCONT)
            await query
            await replaced(client, running.worker)
            status = (await client.snapshot()).status
            assert (status.worker_deaths, status.tenants["spin"].done, status.tenants["spin"].failed) == (1, 2, 0)

    asyncio.run(scenario())


def test_every_worker_killed_at_once_while_queries_wait(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "spin", "mlp", policy="fcfs")) as client:
            victim = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
            await block_under_way(client, "spin")
            others = [asyncio.create_task(client.infer("mlp", {"x": X})) for _ in range(10)]
            killed = set(await pids(client))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerDiedError):
                await victim
            answers = await asyncio.gather(*others, return_exceptions=True)

            async def look() -> bool:
                workers = (await client.snapshot()).status.workers
                return not killed & {w.pid for w in workers} and any(w.state != "starting" for w in workers)

            await until("every death known, and a worker loaded in place of the dead", look)
            lost = [a for a in answers if isinstance(a, WorkerDiedError)]
            assert len(lost) <= 2, "more queries were lost than workers"
            assert [a for a in answers if not isinstance(a, WorkerDiedError) and not right(a)] == []
            assert right(await client.infer("mlp", {"x": X}))

    asyncio.run(scenario())


def test_a_crash_inside_a_kernel_is_one_typed_error(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "crash", "mlp")) as client:
            results = await asyncio.gather(
                client.infer("crash", spin_inputs(1)),
                *(client.infer("mlp", {"x": X}) for _ in range(10)),
                return_exceptions=True,
            )
            assert isinstance(results[0], WorkerDiedError)
            assert "SIGSEGV" in str(results[0])
            assert all(isinstance(a, QueryResult) and right(a) for a in results[1:])

    asyncio.run(scenario())


def test_no_descriptor_or_process_is_left_behind(artifacts: Path) -> None:
    def descriptors(pid: int) -> int:
        gc.collect()  # the memory of a pool that is not used any more keeps a descriptor
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", "spin", spare_workers=0)) as client:
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

"""Queries through engine and workers: answers, cancellation, deadlines, overload, isolation."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from example_models import LONG_TURNS, SPIN_LAYERS, mlp_outputs, spin_inputs, spin_state
from running_engine import block_under_way, serve_config, serving, until

from veltair.errors import DeadlineError, OverloadedError, RefusalReason, RequestError, UnknownModelError
from veltair.server.front.engine_client import EngineClient
from veltair.server.front.query_result import QueryResult

pytestmark = pytest.mark.slow


async def emptied(client: EngineClient) -> None:
    async def none_held() -> bool:
        return (await client.snapshot()).held == 0

    await until("every slot free", none_held)


def batches(count: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((1 + i % 8, 16), dtype=np.float32) for i in range(count)]


@pytest.mark.parametrize("policy", ["fcfs", "veltair-full", "planaria", "prema"])
def test_answers_equal_numpys_at_every_batch_while_tenants_share_the_cores(artifacts: Path, policy: str) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", "spin", policy=policy)) as client:
            xs = batches(64)
            mlp = [client.infer("mlp", {"x": x}, traced=True) for x in xs]
            spin = [client.infer("spin", spin_inputs(turns, seed=turns), traced=True) for turns in range(1, 33)]
            answers = await asyncio.gather(*mlp, *spin)
            for x, answer in zip(xs, answers[:64], strict=True):
                np.testing.assert_allclose(answer.outputs["y"], mlp_outputs(x), rtol=1e-4, atol=1e-4)
            for turns, answer in enumerate(answers[64:], 1):
                assert answer.outputs["state"].tolist() == [spin_state(turns, turns)]
            for answer, layers in [*((a, 3) for a in answers[:64]), *((a, SPIN_LAYERS) for a in answers[64:])]:
                covers_its_layers(answer, layers)
            cores_are_never_shared([block for answer in answers for block in answer.blocks])

    asyncio.run(scenario())


def test_the_default_policy_refuses_at_once_what_cannot_be_in_time(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "spin", policy="veltair")) as client:
            burst = [client.infer("spin", spin_inputs(turns, seed=turns), traced=True) for turns in range(1, 201)]
            answers = await asyncio.gather(*burst, return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, OverloadedError)]
            assert 0 < len(refused) < 200
            assert all(error.reason is RefusalReason.OVERLOAD for error in refused)
            for turns, answer in enumerate(answers, 1):
                if not isinstance(answer, OverloadedError):
                    assert isinstance(answer, QueryResult)
                    assert answer.outputs["state"].tolist() == [spin_state(turns, turns)]
                    covers_its_layers(answer, SPIN_LAYERS)
            await emptied(client)

    asyncio.run(scenario())


def covers_its_layers(answer: QueryResult, layers: int) -> None:
    stops = [0, *(block.stop for block in answer.blocks)]
    assert [block.start for block in answer.blocks] == stops[:-1]
    assert stops[-1] == layers
    assert all(len(block.versions) == block.stop - block.start for block in answer.blocks)
    assert answer.execute_ns == sum(block.end_ns - block.begin_ns for block in answer.blocks)
    assert answer.queue_ns > 0


def cores_are_never_shared(blocks: list) -> None:
    for core in {core for block in blocks for core in block.cores}:
        there = sorted((b for b in blocks if core in b.cores), key=lambda b: b.begin_ns)
        assert all(a.end_ns <= b.begin_ns for a, b in pairwise(there))


def test_versions_of_both_kinds_may_be_mixed_and_batches_changed_between_queries(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", workers=1)) as client:
            for x in batches(20):  # one worker, one slot: every query runs where the last one ran
                answer = await client.infer("mlp", {"x": x})
                np.testing.assert_allclose(answer.outputs["y"], mlp_outputs(x), rtol=1e-4, atol=1e-4)

    asyncio.run(scenario())


def test_a_cancelled_query_stops_at_its_next_layer_and_gives_its_slot_and_worker_back(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "spin", workers=1)) as client:
            task = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
            running = await block_under_way(client, "spin")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await emptied(client)
            snapshot = await client.snapshot(since=0)
            assert snapshot.status.tenants["spin"].cancelled == 1
            ran = [block for block in snapshot.blocks if block.query == running.query]
            assert ran[-1].stop < SPIN_LAYERS
            assert snapshot.status.worker_deaths == 0
            answer = await client.infer("spin", spin_inputs(10, seed=3))
            assert answer.outputs["state"].tolist() == [spin_state(10, 3)]

    asyncio.run(scenario())


def test_a_query_cancelled_while_it_waits_never_runs(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "spin", "mlp", workers=1)) as client:
            first = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
            await block_under_way(client, "spin")
            second = asyncio.create_task(client.infer("mlp", {"x": batches(1)[0]}))

            async def waits() -> bool:
                return (await client.snapshot()).status.tenants["mlp"].waiting == 1

            await until("the second query waits", waits)
            second.cancel()
            first.cancel()
            await asyncio.wait([first, second])
            await emptied(client)
            counts = (await client.snapshot()).status.tenants["mlp"]
            assert (counts.arrived, counts.cancelled, counts.done) == (1, 1, 0)
            assert not [block for block in (await client.snapshot(since=0)).blocks if block.tenant == "mlp"]

    asyncio.run(scenario())


def test_a_deadline_ends_the_wait_and_the_work(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "spin", workers=1)) as client:
            with pytest.raises(DeadlineError, match="passed before"):
                await client.infer("spin", spin_inputs(LONG_TURNS), deadline_ns=time.monotonic_ns() + 50_000_000)
            await emptied(client)
            assert (await client.snapshot()).status.tenants["spin"].cancelled == 1
            with pytest.raises(DeadlineError, match="had passed"):
                await client.infer("spin", spin_inputs(1), deadline_ns=time.monotonic_ns() - 1)
            answer = await client.infer("spin", spin_inputs(1), deadline_ns=time.monotonic_ns() + 60_000_000_000)
            assert answer.outputs["state"].tolist() == [spin_state(1, 1)]

    asyncio.run(scenario())


def test_more_queries_than_slots_are_refused_at_once_and_the_next_one_is_served(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "spin", "mlp", queue_slots=2)) as client:
            held = [asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS))) for _ in range(2)]
            await block_under_way(client, "spin")
            with pytest.raises(OverloadedError, match=RefusalReason.SLOTS.text):
                await client.infer("mlp", {"x": batches(1)[0]})
            for task in held:
                task.cancel()
            await asyncio.wait(held)
            await emptied(client)
            assert (await client.infer("mlp", {"x": batches(1)[0]})).outputs["y"].shape == (1, 8)

    asyncio.run(scenario())


def test_what_does_not_fit_is_refused_and_costs_no_slot(artifacts: Path) -> None:
    x = batches(1)[0]
    wrong = [
        {},
        {"x": x.astype(np.float64)},
        {"x": x[:, :15]},
        {"x": np.zeros((9, 16), np.float32)},
        {"x": np.zeros((1 << 40, 0), np.float32)},
        {"x": np.zeros((0, 16), np.float32)},
        {"x": np.zeros((), np.float32)},
    ]

    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", queue_slots=1)) as client:
            for inputs in wrong:
                with pytest.raises(RequestError, match=r"expected|missing"):
                    await client.infer("mlp", inputs)
            with pytest.raises(UnknownModelError, match="unknown model"):
                await client.infer("nobody", {"x": x})
            answer = await client.infer("mlp", {"x": x})
            np.testing.assert_allclose(answer.outputs["y"], mlp_outputs(x), rtol=1e-4, atol=1e-4)

    asyncio.run(scenario())


def test_snapshot_counts_and_hands_out_each_block_once(artifacts: Path) -> None:
    async def scenario() -> None:
        async with serving(serve_config(artifacts, "mlp", "spin")) as client:
            answers = await asyncio.gather(*(client.infer("mlp", {"x": x}) for x in batches(10)))
            assert not any(answer.blocks for answer in answers)  # none was traced
            first = await client.snapshot(since=0)
            assert not (await client.snapshot()).blocks
            await client.infer("spin", spin_inputs(1))
            second = await client.snapshot(since=first.cursor)
            assert len(first.blocks) == first.cursor >= 10
            assert {block.tenant for block in second.blocks} == {"spin"}
            counts = second.status.tenants["mlp"]
            assert (counts.arrived, counts.done, counts.waiting, counts.running) == (10, 10, 0, 0)
            assert counts.execute_ns == sum(block.elapsed_ns for block in first.blocks)
            assert counts.execute_ns == sum(answer.execute_ns for answer in answers)
            assert counts.queue_ns == sum(answer.queue_ns for answer in answers)
            assert counts.versions == Counter(version for block in first.blocks for version in block.versions)
            assert second.status.scheduler_events >= 22
            assert second.status.scheduler_ns > 0
            assert [w.state for w in second.status.workers].count("busy") == 0
            assert not (await client.snapshot(since=second.cursor)).blocks

    asyncio.run(scenario())

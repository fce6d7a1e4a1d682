"""Queries with strings through engine and workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from example_models import LONG_TURNS, digests, spin_inputs
from running_engine import block_under_way, serve_config, serving, until

from veltair.errors import RequestError, TooLargeError
from veltair.profiles.artifact.strings import Strings
from veltair.server.front.engine_client import EngineClient

Query = tuple[list[bytes], list[bytes], list[int]]  # names, texts, ids


MARKER = b"marker of another query "


ODD = [b"", b"\0", b"a\0b", b"\xff\xfe\x80", "Größe".encode(), b";" * 9]


def inputs(query: Query) -> dict[str, Any]:
    names, texts, ids = query
    column = np.array(ids, np.int64).reshape(-1, 1)
    return {"name": Strings.from_values(names), "text": Strings.from_values(texts), "id": column}


def drawn(seed: int, rows: int) -> Query:
    chance = np.random.default_rng(seed)
    names = [chance.bytes(chance.integers(0, 9)) for _ in range(rows)]
    texts = [chance.bytes(chance.integers(0, 300)) for _ in range(rows)]
    return names, texts, chance.integers(0, 1 << 40, rows).tolist()


@pytest.mark.slow
def test_answers_alone_whatever_stood_in_the_slot(artifacts: Path) -> None:
    marker = [MARKER[:8]] * 4, [MARKER * 1000] * 4, [7] * 4
    small: list[Query] = [([b""], [b""], [0]), ([b"a"], [b"b"], [-1])]
    odd: list[Query] = [(ODD[:4], ODD[2:], [1, 2, 3, 4]), drawn(5, 3)]
    large: list[Query] = [([b""], [b"x" * 10_000_000], [1 << 40]), ([b""] * 4, [b""] * 4, [-(1 << 63)] * 4)]
    queries: list[Query] = [marker, *small, marker, *odd, marker, *large]

    async def scenario() -> None:
        async with serving(serve_config(artifacts, "words", queue_slots=1, workers=1)) as client:
            for query in queries:
                answer = await client.infer("words", inputs(query))
                assert answer.outputs["digest"].tolist() == digests(*query)

    asyncio.run(scenario())


@pytest.mark.slow
def test_too_much_text_is_refused_and_costs_no_slot(artifacts: Path) -> None:
    short: Query = [b"a"], [b"b"], [1]

    async def scenario() -> None:
        async with serving(serve_config(artifacts, "words", queue_slots=1, workers=1)) as client:
            for name, text, says in (
                (b"123456789", b"", "'name': 9 bytes of text in 1 rows; at most 8 a row"),
                (b"", bytes((1 << 24) + 1), f"'text': {(1 << 24) + 1} bytes of text"),
            ):
                with pytest.raises(TooLargeError, match=says):
                    await client.infer("words", inputs(([name], [text], [1])))
            with pytest.raises(RequestError, match="'text': expected 1 strings, got int64"):
                await client.infer("words", {**inputs(short), "text": np.zeros((1, 1), np.int64)})
            with pytest.raises(RequestError, match=r"'text': expected uint8 data and 2 int32 offsets, got \(3,\)"):
                await client.infer("words", {**inputs(short), "text": Strings.from_values([b"a", b"b"])})
            falling = Strings(np.zeros(9, np.uint8), np.array([0, 9, 3], np.int32))
            with pytest.raises(RequestError, match="'text': offsets fall at row 1"):
                await client.infer("words", {**inputs(drawn(1, 2)), "text": falling})
            # 16 bytes on average: what one row has too many, another may have too few
            averaged: Query = [b"x" * 15, b"y"], [b"", b""], [1, 2]
            for query in (averaged, short):
                assert (await client.infer("words", inputs(query))).outputs["digest"].tolist() == digests(*query)

    asyncio.run(scenario())


@pytest.mark.slow
def test_queries_of_a_tenant_run_as_one_batch(artifacts: Path) -> None:
    config = serve_config(artifacts, "spin", "words", policy="veltair", workers=1)
    tenants = tuple(msgspec.structs.replace(tenant, qos_ms=600_000.0) for tenant in config.tenants)
    queries = [drawn(seed, rows) for seed, rows in enumerate((1, 2, 1, 3, 1))]

    async def waiting(client: EngineClient, count: int) -> None:
        async def look() -> bool:
            return (await client.snapshot()).status.tenants["words"].waiting == count

        await until(f"{count} queries wait", look)

    async def scenario() -> None:
        async with serving(msgspec.structs.replace(config, tenants=tenants)) as client:
            long = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
            await block_under_way(client, "spin")
            tasks = []
            for count, query in enumerate(queries, 1):
                tasks.append(asyncio.create_task(client.infer("words", inputs(query), traced=True)))
                await waiting(client, count)
            long.cancel()
            answers = await asyncio.gather(*tasks)
            for query, answer in zip(queries, answers, strict=True):
                assert answer.outputs["digest"].tolist() == digests(*query)
            assert [answer.blocks[0].queries for answer in answers] == [3, 3, 3, 2, 2]

    asyncio.run(scenario())

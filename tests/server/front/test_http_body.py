"""Bodies that are malformed, too large or very large."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from in_process_front import LIMIT, Front, post_scope, request, run

from veltair.errors import RefusalReason
from veltair.server.protocol.json_parser import INLINE_BYTES

BAD_BODIES = [
    (b"", {}, 400, "truncated"),
    (b"{", {}, 400, "truncated"),
    (json.dumps(request()).encode(), {"Inference-Header-Content-Length": "many"}, 400, "count of bytes"),
    (json.dumps(request()).encode(), {"Inference-Header-Content-Length": "-1"}, 400, "count of bytes"),
    (json.dumps(request()).encode(), {"Inference-Header-Content-Length": "9" * 30}, 400, "count of bytes"),
    (json.dumps(request()).encode(), {"Inference-Header-Content-Length": "100000000"}, 400, "100000000"),
    (b"no gzip", {"Content-Encoding": "gzip"}, 400, "not valid gzip"),
    (b"x", {"Content-Encoding": "br"}, 501, "br"),
    (gzip.compress(b"0" * (LIMIT + 1)), {"Content-Encoding": "gzip"}, 413, "unpacks to more"),
    (b"0" * (LIMIT + 1), {}, 413, f"{LIMIT} are allowed"),
]


@pytest.mark.parametrize(("body", "headers", "status", "message"), BAD_BODIES)
def test_a_bad_body_and_then_a_good_one(body: bytes, headers: dict[str, str], status: int, message: str) -> None:
    async def test(front: Front) -> None:
        answer = await front.http.post("/v2/models/sums/infer", content=body, headers=headers)
        assert answer.status_code == status
        assert message in answer.json()["error"]
        await front.good()

    run(test)


def test_an_oversized_body_is_refused_from_its_length_and_when_chunked() -> None:
    async def test(front: Front) -> None:
        taken = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal taken
            while True:
                taken += 1 << 20
                assert taken < LIMIT + (4 << 20), "it reads on"
                yield bytes(1 << 20)

        answer = await front.http.post(
            "/v2/models/sums/infer", content=endless(), headers={"Content-Length": str(LIMIT + 1)}
        )
        assert answer.status_code == 413 and answer.headers["Connection"] == "close"

    run(test)

    async def chunked() -> None:
        front, sent, taken = Front(), [], 0

        async def receive() -> dict[str, Any]:
            nonlocal taken
            taken += 1 << 20
            return {"type": "http.request", "body": bytes(1 << 20), "more_body": True}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = post_scope("/v2/models/sums/infer")
        await front.app(scope, receive, send)
        assert sent[0]["status"] == 413
        assert taken == LIMIT + (1 << 20)

        taken = 0
        scope["headers"] = [(b"content-length", str(LIMIT + 1).encode())]
        sent.clear()
        await front.app(scope, receive, send)
        assert sent[0]["status"] == 413
        assert taken == 0
        await front.http.aclose()

    asyncio.run(chunked())


def test_what_bodies_unpack_to_counts_as_memory() -> None:
    """Small ones that are large inside wait for the parser of large bodies: together they have a bound."""

    async def test(front: Front) -> None:
        body = gzip.compress(large(1, parameters={"note": "." * INLINE_BYTES}))
        members = gzip.compress(large(1)[:100]) + gzip.compress(large(1)[100:])
        service = front.service
        held = service.unpacker.unpack(gzip.compress(bytes(LIMIT)), "gzip", LIMIT)
        service.unpacker._most_bytes = 2 * LIMIT - 1
        more = service.unpacker.unpack(gzip.compress(bytes(LIMIT - 1)), "gzip", LIMIT)
        answer = await front.http.post("/v2/models/sums/infer", content=body, headers={"Content-Encoding": "gzip"})
        assert answer.status_code == 503 and "memory" in answer.json()["error"]
        assert service.metrics.refused_early[RefusalReason.MEMORY] == 1
        del held, more
        for content in (body, members):
            answer = await front.http.post(
                "/v2/models/sums/infer", content=content, headers={"Content-Encoding": "gzip"}
            )
            assert answer.status_code == 200
        async with asyncio.timeout(60):  # the loop and the parser's process still hold what they are at
            while service.unpacker.held_bytes:
                await asyncio.sleep(0)

    run(test)


def large(batch: int, **change: Any) -> bytes:
    """JSON well above what is parsed in this process."""
    x = np.linspace(0, 1, 4 * batch, dtype=np.float32)
    ids = np.arange(2 * batch) % 100
    inputs = [
        {"name": "x", "shape": [batch, 4], "datatype": "FP32", "data": x.tolist()},
        {"name": "ids", "shape": [batch, 2], "datatype": "INT64", "data": ids.tolist()},
    ]
    return json.dumps({"inputs": inputs, **change}).encode()


def test_large_json_over_http() -> None:
    async def test(front: Front) -> None:
        answer = await front.http.post("/v2/models/sums/infer", content=large(4096))
        assert answer.status_code == 400 and "1…8" in answer.json()["error"]
        padded = large(1, parameters={"note": "." * INLINE_BYTES})
        answer = await front.http.post("/v2/models/sums/infer", content=padded)
        assert answer.status_code == 200
        await front.good()

    run(test)

"""How queries over HTTP/1.1 with a plan end when they are not answered with outputs."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from native_http import PLAIN, HttpFronts, infer, run

from veltair.errors import RefusalReason
from veltair.server.ipc.messages import Outcome

ENDS: dict[Outcome, tuple[bytes, str]] = {
    "rejected": (b"503 Service Unavailable", RefusalReason.OVERLOAD),
    "cancelled": (b"504 Gateway Timeout", RefusalReason.DEADLINE),
    "failed": (b"500 Internal Server Error", 'the kernel\t\x0b"quoted\\" …'),
    "worker_died": (b"500 Internal Server Error", "the worker …"),
}


@pytest.mark.parametrize("outcome", ENDS)
def test_queries_that_fail(outcome: Outcome) -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        expected = await fronts.learn(client, PLAIN)
        status, reason = ENDS[outcome]
        client.send(PLAIN)
        fronts.scripted.end(await fronts.scripted.next(), outcome, reason)
        head, _, text = (await client.answer()).partition(b"\r\n\r\n")
        told = reason.text if isinstance(reason, RefusalReason) else reason
        retry = b"retry-after: 1\r\n" if status[:3] == b"503" else b""
        content = msgspec.json.encode({"error": told})
        assert text == content
        length = b"content-length: %d\r\ncontent-type: application/json" % len(content)
        assert head == b"HTTP/1.1 " + status + b"\r\n" + retry + length
        client.send(PLAIN)
        fronts.scripted.end(await fronts.scripted.next())
        assert await client.answer() == expected

    run(test, automatic=False)


def test_no_free_slot() -> None:
    async def test(fronts: HttpFronts) -> None:
        first, second = await fronts.client(), await fronts.client()
        await fronts.learn(first, PLAIN)
        first.send(PLAIN)
        held = await fronts.scripted.next()
        answer = await second.ask(PLAIN)
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n")
        assert answer.endswith(b'{"error":"as many queries are held already as this server takes; try later"}')
        second.send(PLAIN * 500)  # refused one after the other
        for _ in range(500):
            assert await second.answer() == answer
        fronts.scripted.end(held)
        await first.answer()
        assert fronts.fronts.outcomes() == {"ok": 2, "overloaded": 501}

    run(test, automatic=False, slots=1)


def test_a_deadline_that_passes() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        data = infer(request_id="any", timeout=20_000)
        await fronts.learn(client, data)
        client.send(data * 2)
        for _ in range(2):
            held = await fronts.scripted.next()
            answer = await client.answer()
            assert answer.startswith(b"HTTP/1.1 504 Gateway Timeout\r\ncontent-length: ")
            assert answer.endswith(b'{"error":"the deadline passed before the query was answered"}')
            fronts.scripted.end(held, "cancelled")

    run(test, automatic=False)


def test_the_engine_ends_and_another_comes() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        expected = await fronts.learn(client, PLAIN)
        client.send(PLAIN * 2)
        await fronts.scripted.next()
        await asyncio.to_thread(fronts.scripted.link.leave, "it ended")
        assert (await client.answer()).endswith(b'{"error":"it ended"}')
        assert await client.answer() == expected  # Python's, since no engine is linked
        fronts.fronts.link()
        assert await client.ask(PLAIN) == expected
        assert fronts.scripted.count == 1

    run(test, automatic=False)

"""Connections over HTTP/1.1: requests in parts, one behind the other, and how connections end."""

from __future__ import annotations

import asyncio

import pytest
from native_http import GET, LIVE, PLAIN, HttpFronts, infer, run

from veltair.config import LimitsConfig


def test_a_request_in_two_parts_of_any_size() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        expected = await fronts.learn(client, PLAIN)
        for at in range(1, len(PLAIN)):
            client.send(PLAIN[:at])
            await asyncio.sleep(0)  # one part at a time
            client.send(PLAIN[at:])
            assert await client.answer() == expected, at
        assert fronts.scripted.count == len(PLAIN) - 1

    run(test)


def test_byte_by_byte_with_forwarded_requests_in_between() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        expected = await fronts.learn(client, PLAIN)
        for byte in GET + PLAIN + GET + PLAIN:
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert [await client.answer() for _ in range(4)] == [LIVE, expected, LIVE, expected]
        assert fronts.scripted.count == 2

    run(test)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        await fronts.learn(client, PLAIN)
        requests = [infer(request_id=str(number)) if number % 3 else GET for number in range(200)]
        client.send(b"".join(requests))
        for number in range(200):
            answer = await client.answer()
            assert f'"id":"{number}"'.encode() in answer if number % 3 else answer == LIVE
        assert fronts.scripted.count == 200 - 67

    run(test)


def test_one_query_at_a_time_of_a_connection() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        await fronts.learn(client, PLAIN)
        client.send(PLAIN * 3)
        for number in range(3):
            held = await fronts.scripted.next()
            assert fronts.scripted.count == number + 1
            fronts.scripted.end(held)
            await client.answer()

    run(test, automatic=False)


@pytest.mark.parametrize(
    ("version", "headers"), [("1.0", ""), ("1.1", "Connection: close\r\n"), ("1.1", "Connection: x, Close\r\n")]
)
def test_connections_that_end_with_the_answer(version: str, headers: str) -> None:
    async def test(fronts: HttpFronts) -> None:
        await fronts.learn(await fronts.client(), PLAIN)
        answers = []
        for python in (False, True):
            client = await fronts.client(python=python)
            client.send(infer(request_id="any", headers=headers, version=version))
            answers.append(await client.rest())
        assert answers[0] == answers[1] != b""
        assert fronts.scripted.count == 1

    run(test)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_client_that_leaves_cancels_its_query(parts: int) -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        await fronts.learn(client, PLAIN)
        client.send(PLAIN * parts)
        held = await fronts.scripted.next()
        await client.close()
        await fronts.scripted.until(lambda: fronts.scripted.aborted == [held.message.query])
        fronts.scripted.end(held, "cancelled")
        assert fronts.fronts.outcomes() == {"ok": 1, "cancelled": 1}

    run(test, automatic=False)


def test_while_shutting_down_requests_are_pythons() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        expected = await fronts.learn(client, PLAIN)
        fronts.fronts.threads.set_open(False)
        assert await fronts.learn(client, PLAIN) == expected
        assert fronts.scripted.count == 0

    run(test)


@pytest.mark.parametrize("held", [False, True])
def test_stopping_answers_what_was_begun_and_closes_the_rest(held: bool) -> None:
    async def test(fronts: HttpFronts) -> None:
        client, idle, partial = [await fronts.client() for _ in range(3)]
        await fronts.learn(client, PLAIN)
        assert await idle.ask(GET) == LIVE
        partial.send(PLAIN[:20])
        if held:
            client.send(PLAIN)
            query = await fronts.scripted.next()
        stopping = asyncio.create_task(fronts.fronts.threads.stop(60))
        assert await idle.rest() == await partial.rest() == b""
        if held:
            assert not stopping.done()
            fronts.scripted.end(query)
            answer = await client.rest()
            assert b"200 OK" in answer and b"connection: close" in answer
        assert await client.rest() == b""
        await stopping

    run(test, automatic=False)


def test_idle_connections_are_closed() -> None:
    async def test(fronts: HttpFronts) -> None:
        client, idle, partial = [await fronts.client() for _ in range(3)]
        expected = await fronts.learn(client, PLAIN)
        partial.send(PLAIN[:20])
        client.send(PLAIN)
        held = await fronts.scripted.next()
        assert await idle.rest() == b""  # that is after both others would have been
        fronts.scripted.end(held)
        assert await client.answer() == expected
        assert await client.rest() == b""
        partial.send(PLAIN[20:])
        fronts.scripted.end(await fronts.scripted.next())
        assert await partial.answer() == expected

    run(test, automatic=False, limits=LimitsConfig(idle_s=0.3))


def test_many_clients_at_once() -> None:
    async def test(fronts: HttpFronts) -> None:
        await fronts.learn(await fronts.client(), PLAIN)

        async def one(number: int) -> None:
            client = await fronts.client()
            for turn in range(20):
                id_ = f"{number}.{turn}"
                assert f'"id":"{id_}"'.encode() in await client.ask(infer(request_id=id_))

        await asyncio.gather(*(one(number) for number in range(30)))
        assert fronts.scripted.count == 30 * 20

    run(test, threads=2, slots=60)  # of which half are the other tenants'

"""Clients over HTTP/1.1 that close their side of a connection behind their requests: they wait, or they have left."""

from __future__ import annotations

import socket

import pytest
from native_http import GET, LIVE, PLAIN, HttpFronts, infer, run

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
UNPLANNED = infer(request_id="any", priority=2)  # as long as nobody has asked for it


async def end(fronts: HttpFronts, data: bytes) -> bytes:
    """All that a client reads that sends this and no more."""
    client = await fronts.client()
    client.send(data)
    client.writer.write_eof()
    return await client.rest()


def test_it_gets_all_its_answers() -> None:
    async def test(fronts: HttpFronts) -> None:
        expected = await fronts.learn(await fronts.client(), PLAIN)
        for data, answers in (
            (PLAIN, expected),
            (GET, LIVE),
            (UNPLANNED, expected),
            (PLAIN + GET + PLAIN, expected + LIVE + expected),
        ):
            assert (await end(fronts, data)).replace(INTERIM, b"", 1) == answers
        head = b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert b"HTTP/1.1 200 OK\r\n" in await end(fronts, head + b"2\r\n{}\r\n0\r\n\r\n")

    run(test)


def test_an_interim_response_finds_out_whether_it_is_there() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        expected = await fronts.learn(client, PLAIN)
        client.send(PLAIN)
        held = await fronts.scripted.next()
        client.writer.write_eof()
        assert await client.reader.readexactly(len(INTERIM)) == INTERIM  # before there is an answer
        fronts.scripted.end(held)
        assert await client.rest() == expected

    run(test, automatic=False)


def test_a_client_of_http_1_0_knows_no_interim_responses() -> None:
    async def test(fronts: HttpFronts) -> None:
        data = infer(request_id="any", version="1.0")
        expected = await fronts.learn(await fronts.client(), data)
        assert await end(fronts, data) == expected

    run(test)


@pytest.mark.parametrize("data", [PLAIN[:-1], PLAIN[:40], GET[:-2], b"", GET + PLAIN[:-1]])
def test_half_a_request_ends_the_connection(data: bytes) -> None:
    async def test(fronts: HttpFronts) -> None:
        await fronts.learn(await fronts.client(), PLAIN)
        count = fronts.scripted.count
        answer = await end(fronts, data)
        assert answer.removeprefix(INTERIM) == (LIVE if data.startswith(GET) else b"")
        assert fronts.scripted.count == count

    run(test)


def test_an_end_with_a_reset_behind_it() -> None:
    async def test(fronts: HttpFronts) -> None:
        await fronts.learn(await fronts.client(), PLAIN)
        with socket.create_connection(fronts.native) as client:
            client.sendall(PLAIN)
            held = await fronts.scripted.next()
            client.shutdown(socket.SHUT_WR)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await fronts.scripted.until(lambda: fronts.scripted.aborted == [held.message.query])

    run(test, automatic=False)

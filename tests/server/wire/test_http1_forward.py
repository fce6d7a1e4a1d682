"""What the I/O threads pass on over HTTP/1.1, with a scripted server in uvicorn's place."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest
from native_http import GET, infer
from scripted_uvicorn import Behind, run

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
MOST_UNHEARD = 1 << 16  # http1.h
LARGE = bytes(range(256)) * (1 << 14)  # 4 MB, more than all buffers between the two ends

RESPONSES = {
    "a length": OK,
    "nothing": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nContent-Length: 9\r\n\r\n" + OK,
    "large": b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(LARGE) + LARGE,
}


@pytest.mark.parametrize("case", RESPONSES)
def test_one_connection_carries_request_after_request(case: str) -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(GET)
        for _ in range(3):
            server.send(RESPONSES[case])
            assert await client.reader.readexactly(len(RESPONSES[case])) == RESPONSES[case]
            client.send(GET)
            assert await server.reader.readexactly(len(GET)) == GET

    run(test)


@pytest.mark.parametrize("case", ["a length", "nothing", "interim"])
def test_a_response_in_parts_of_one_byte(case: str) -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(GET)
        for byte in RESPONSES[case]:
            server.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await client.reader.readexactly(len(RESPONSES[case])) == RESPONSES[case]
        client.send(GET)
        assert await server.reader.readexactly(len(GET)) == GET

    run(test)


def test_a_head_has_no_body() -> None:
    async def test(behind: Behind) -> None:
        head, answer = GET.replace(b"GET", b"HEAD"), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
        client, server = await behind.begin(head)
        server.send(answer)
        assert await client.reader.readexactly(len(answer)) == answer
        client.send(GET)
        assert await server.reader.readexactly(len(GET)) == GET

    run(test)


def test_the_next_request_waits_for_the_response() -> None:
    async def test(behind: Behind) -> None:
        first = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
        client, server = await behind.begin(first)
        client.send(GET * 2)
        server.send(OK[:-1])
        assert await client.reader.readexactly(len(OK) - 1) == OK[:-1]
        assert not server.reader._buffer  # type: ignore[attr-defined]
        for _ in range(2):
            server.send(OK[-1:] if _ == 0 else OK)
            assert await server.reader.readexactly(len(GET)) == GET
        server.send(OK)
        assert await client.reader.readexactly(1 + 2 * len(OK)) == OK[-1:] + OK * 2

    run(test)


def test_bodies_stream_both_ways_at_once() -> None:
    async def test(behind: Behind) -> None:
        head = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
        client, server = await behind.begin(head)
        client.send(LARGE)
        assert await server.reader.readexactly(1 << 20) == LARGE[: 1 << 20]
        server.send(RESPONSES["large"])  # before the request is complete
        assert await client.reader.readexactly(len(RESPONSES["large"])) == RESPONSES["large"]
        assert await server.reader.readexactly(len(LARGE) - (1 << 20)) == LARGE[1 << 20 :]
        client.send(GET)
        assert await server.reader.readexactly(len(GET)) == GET

    run(test)


def filled(connection: socket.socket) -> int:
    """Bytes that go in until none has for a while."""
    sent = 0
    connection.settimeout(0.5)
    with suppress(TimeoutError):
        while True:
            sent += connection.send(LARGE)
    return sent


@pytest.mark.parametrize("back", [False, True], ids=["request", "response"])
def test_a_reader_that_does_not_read_holds_its_writer_back(back: bool) -> None:
    """Else the memory of the threads would hold it all."""

    async def test(behind: Behind) -> None:
        client = socket.create_connection(behind.address)
        client.sendall(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
        server = await behind.accepted()
        server.writer.transport.pause_reading()
        if back:
            server.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
            await server.writer.drain()
            writer = socket.fromfd(server.writer.get_extra_info("socket").fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            writer = client.dup()
        with client, writer:
            assert await asyncio.to_thread(filled, writer) < 64 << 20

    run(test)


OPAQUE = {
    "another coding": (b"POST /a HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", OK),
    "chunks and a length": (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", OK),
    "chunks, which HTTP/1.0 has not": (b"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", OK),
    "two upgrades": (
        b"GET /a HTTP/1.1\r\nConnection: Upgrade\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
    ),
    "garbage": (b"\x16\x03\x01hello", b"what?"),
    "no such version": (b"GET / HTTP/2.0\r\n", b"what?"),
    "a line that is too long": (b"GET /" + b"a" * 9000, b"what?"),
    "a space before the colon": (b"GET / HTTP/1.1\r\nA : b\r\n", b"what?"),
    "a folded line": (b"GET / HTTP/1.1\r\nA: b\r\n c\r\n", b"what?"),
    "a bare line feed": (b"GET / HTTP/1.1\nA: b\n", b"what?"),
    "two lengths": (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n", b"what?"),
    "chunked response": (GET, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"),
    "up to the end": (GET, b"HTTP/1.1 200 OK\r\n\r\nok"),
    "a second response": (GET, OK + OK),
    "no response": (GET, b"what?" + b"x" * 70_000),
    "a switch": (GET, b"HTTP/1.1 101 Switching\r\nContent-Length: 5\r\n\r\n"),
}


def test_an_upgrade_is_declined_and_its_request_is_one_as_any_other() -> None:
    async def test(behind: Behind) -> None:
        begin, end = b"POST /a HTTP/1.1\r\nConnection: ", b"\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok"
        client = await behind.client()
        for _ in range(2):
            client.send(begin + b"Upgrade, HTTP2-Settings" + end)
        server = await behind.accepted()
        for _ in range(2):
            passed_on = begin + b" " * 23 + end
            assert await server.reader.readexactly(len(passed_on)) == passed_on
            server.send(OK)
            assert await client.reader.readexactly(len(OK)) == OK

    run(test)


@pytest.mark.parametrize("case", OPAQUE)
def test_what_cannot_be_told_apart_goes_through_both_ways(case: str) -> None:
    async def test(behind: Behind) -> None:
        request, response = OPAQUE[case]
        client, server = await behind.begin(request)
        server.send(response)
        assert await client.reader.readexactly(len(response)) == response
        for data in (b"\x00\xff", infer(), GET * 3, LARGE):
            sent = data if case == "a switch" else data[: MOST_UNHEARD - 1]
            client.send(sent)
            assert await server.reader.readexactly(len(sent)) == sent
            server.send(data)
            assert await client.reader.readexactly(len(data)) == data
        client.send(b"last")
        client.writer.write_eof()
        assert await server.rest() == b"last"
        server.send(LARGE)
        await server.close()
        assert await client.rest() == LARGE

    run(test)


def test_more_than_a_head_that_the_server_says_nothing_to_is_refused() -> None:
    """A head that only uvicorn reads would fill its memory."""

    async def test(behind: Behind) -> None:
        client, server = await behind.begin(b"PROPFIND /a HTTP/1.1\r\n")
        client.send(b"A: %s\r\n" % (b"a" * 1000) * 100)
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 431 ") and answer.endswith(b'"}')
        assert len(await server.rest()) <= MOST_UNHEARD

    run(test)


def test_a_response_that_closes_ends_the_connection() -> None:
    async def test(behind: Behind) -> None:
        answer = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        client, server = await behind.begin(GET)
        server.send(answer)
        assert await client.rest() == answer
        assert await server.rest() == b""

    run(test)


def test_a_server_that_answers_early_and_closes_is_heard() -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(b"POST /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(LARGE))
        server.send(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        await server.close()
        client.send(LARGE)
        assert (await client.answer()).endswith(b"ok")

    run(test)


def test_an_idle_server_that_closes_is_asked_anew() -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(GET)
        server.send(OK)
        assert await client.answer() == OK
        server.writer.write_eof()
        assert await server.rest() == b""  # the other end is closed as well
        client.send(GET)
        another = await behind.accepted()
        assert await another.reader.readexactly(len(GET)) == GET
        another.send(OK)
        assert await client.answer() == OK

    run(test)


def test_a_server_that_dies_ends_the_connection() -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(GET)
        server.send(OK[:20])
        await server.close()
        assert await client.rest() == OK[:20]

    run(test)


@pytest.mark.parametrize("request_", [GET, b"POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\n123"])
def test_a_client_that_leaves_is_gone_for_the_server(request_: bytes) -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(request_)
        await client.close()
        assert await server.rest() == b""

    run(test)


def test_stopping_waits_for_responses() -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(GET)
        idle, answered = await behind.begin(GET)
        answered.send(OK)
        assert await idle.answer() == OK
        stopping = asyncio.create_task(behind.threads.stop(60))
        assert await idle.rest() == b"" and not stopping.done()
        server.send(OK)
        assert await client.rest() == OK
        await stopping

    run(test)

"""Requests with a body in chunks: what uvicorn gets of them, their bounds, and that their answers are the same."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest
from in_process_front import LIMIT
from native_http import GET, LIVE, Client, HttpFronts, body, infer, undated
from native_http import run as run_fronts
from scripted_uvicorn import Behind, run

from veltair.config import LimitsConfig

HEAD = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
MOST = LimitsConfig().header_bytes
DATA = bytes(range(256)) * 40


def chunked(data: bytes, seed: int) -> bytes:
    """In chunks of chance sizes, some with extensions, and perhaps trailers."""
    chance, sent = random.Random(seed), b""
    while data:
        size = min(chance.choice([1, 2, 16, 500, len(data)]), len(data))
        extension = chance.choice([b"", b"", b";a", b';a="b c";d'])
        sent += chance.choice([b"%x", b"%X", b"%04x"]) % size + extension + b"\r\n" + data[:size] + b"\r\n"
        data = data[size:]
    return sent + b"0\r\n" + chance.choice([b"", b"A: b\r\nC: d\r\n"]) + b"\r\n"


async def read_chunks(server: Client) -> tuple[bytes, int]:
    """The body that uvicorn gets, and how many chunks it has; they have neither extensions nor trailers."""
    found, count = b"", 0
    while size := int(re.fullmatch(rb"([0-9a-f]+)\r\n", await server.reader.readuntil(b"\r\n"))[1], 16):  # type: ignore[index]
        found += await server.reader.readexactly(size)
        count += 1
        assert await server.reader.readexactly(2) == b"\r\n"
    assert await server.reader.readexactly(2) == b"\r\n"
    return found, count


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [1, 700, 1 << 20])
def test_the_data_alone_is_passed_on(seed: int, most: int) -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(HEAD)
        data = DATA[: 300 if most == 1 else None]
        for _ in range(2):
            sent = chunked(data, seed) + HEAD
            for at in range(0, len(sent), most):
                client.send(sent[at : at + most])
                await asyncio.sleep(0)
            assert (await read_chunks(server))[0] == data
            server.send(OK)
            assert await client.answer() == OK
            assert await server.reader.readexactly(len(HEAD)) == HEAD  # of the next one

    run(test)


def test_many_small_chunks_become_few() -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(HEAD)
        client.send(b"".join(b"1\r\n%c\r\n" % byte for byte in DATA) + b"0\r\n\r\n")
        found, count = await read_chunks(server)
        assert found == DATA and count < len(DATA) // 50

    run(test)


BROKEN = {
    "no digit": b"\r\n",
    "no number": b"zz\r\n",
    "a sign": b"-1\r\n",
    "a space": b"1 \r\na\r\n",
    "too many digits": b"0" * 16 + b"1\r\na\r\n",
    "a bare line feed": b"1\na\r\n",
    "a bare line feed behind the data": b"1\r\na\n",
    "data beyond the size": b"1\r\nab\r\n",
    "a control character in an extension": b"1;\x01\r\na\r\n",
    "a bare carriage return in an extension": b"1;a\rb\r\na\r\n",
    "a trailer without a name": b"0\r\n: b\r\n\r\n",
    "a trailer without a colon": b"0\r\na\r\n\r\n",
    "a folded trailer": b"0\r\na: b\r\n c\r\n\r\n",
    "a bare line feed at the end": b"0\r\n\n",
    "too long an extension": b"1;" + b"a" * MOST + b"\r\n",
    "too many extensions": b"1;%s\r\na\r\n" % (b"a" * 100) * (MOST // 100 + 1),
    "endless trailers": b"0\r\n" + b"a: b\r\n" * (MOST // 6 + 1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_refused(case: str) -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(HEAD)
        client.send(BROKEN[case])
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"connection: close" in answer
        assert b'{"error":"the chunks of the body ' in answer
        assert len(await server.rest()) <= 100 * 20  # and it learns that the request has no end

    run(test)


def test_a_broken_chunk_behind_an_answer_cuts_it_off() -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(HEAD)
        server.send(OK[:-1])
        assert await client.reader.readexactly(len(OK) - 1) == OK[:-1]
        client.send(b"zz\r\n")
        assert await client.rest() == await server.rest() == b""

    run(test)


@pytest.mark.parametrize("chunk", [1 << 16, 1 << 40])
def test_uvicorn_learns_that_a_body_is_too_large_and_gets_no_more_of_it(chunk: int) -> None:
    async def test(behind: Behind) -> None:
        client, server = await behind.begin(HEAD)
        part = bytes(min(chunk, LIMIT))

        async def send() -> None:
            if chunk > LIMIT:
                client.send(b"%x\r\n" % chunk)
            while not client.writer.is_closing():
                client.send(part if chunk > LIMIT else b"%x\r\n" % chunk + part + b"\r\n")
                await client.writer.drain()
                await asyncio.sleep(0)

        sending = asyncio.create_task(send())
        passed = 0
        while passed <= LIMIT:
            size = int(await server.reader.readuntil(b"\r\n"), 16)
            passed += len(await server.reader.readexactly(size + 2)) - 2
        assert passed == LIMIT + 1
        server.send(OK)
        assert await client.answer() == OK
        assert await client.rest() == b""  # and no reset, though it goes on sending
        assert await server.rest() == b""
        assert not sending.done()
        sending.cancel()

    run(test)


def either_way(seed: int) -> tuple[bytes, bytes]:
    """A request with its body in one piece, and in chunks."""
    chance = random.Random(seed)
    data, json_bytes = body(
        [[1.0] * (4 if chance.random() < 0.8 else 3)] * chance.choice([1, 2]),
        request_id="abc",
        binary=chance.random() < 0.7,
    )
    if chance.random() < 0.2:
        data = data[: chance.randrange(len(data))]
    length = b"Inference-Header-Content-Length: %d" % json_bytes if json_bytes < len(data) else b"A: b"
    head = infer().partition(b"\r\n")[0] + b"\r\nHost: a\r\n" + length
    in_one = head + b"\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    return in_one, head + b"\r\nTransfer-Encoding: Chunked\r\n\r\n" + chunked(data, seed)


def test_answers_are_those_of_a_body_in_one_piece() -> None:
    async def test(fronts: HttpFronts) -> None:
        for seed in range(40):
            in_one, in_chunks = either_way(seed)
            expected = await fronts.both(in_one)
            assert await fronts.both(in_chunks) == expected, seed
            client = await fronts.client()
            client.send(in_chunks + GET + in_chunks)  # and the requests behind it are where they are
            assert [await client.answer() for _ in range(3)] == [expected, LIVE, expected], seed

    run_fronts(test)


def test_a_body_that_takes_too_long() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        client.send(infer().partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{")
        assert undated(await client.rest()) == b""

    options: dict[str, Any] = {"limits": LimitsConfig(body_s=0.2)}
    run_fronts(test, **options)

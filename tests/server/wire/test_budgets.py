"""What clients may use up of the I/O threads: connections, memory and time, over both protocols."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import grpc
import native_front
import native_http
from native_front import INFER, LIMIT, Answer, Fronts, ask, encoded
from native_http import GET, LIVE, PLAIN, Client, HttpFronts, post
from wire_frames import frame, parse_frames, setting, word

from veltair.config import LimitsConfig
from veltair.errors import RefusalReason
from veltair.grpc.http2 import frames, hpack

HEAD = [(":method", "POST"), (":scheme", "http"), (":path", INFER), ("content-type", "application/grpc")]
STREAM = [*HEAD[:2], (":path", INFER.replace("ModelInfer", "ModelStreamInfer")), HEAD[3]]
SOON_S = 0.2
Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def head(number: int, fields: list[hpack.Field] = HEAD) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS, number, hpack.encode(fields))


@asynccontextmanager
async def connected(
    fronts: Fronts, *, greets: bool = True
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection over gRPC, which has sent its preface and settings unless it `greets` not."""
    host, _, port = fronts.native.address.rpartition(":")
    reader, writer = await fronts.connect() if greets else await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await reader.read(1 << 16):
            data += part
    return data


def statuses(sent: bytes) -> dict[int, str]:
    """The gRPC status of each stream in what a server has sent."""
    found: dict[int, str] = {}
    decoder = hpack.Decoder()
    for kind, _, number, payload in parse_frames(sent):
        if kind == frames.HEADERS:
            fields = dict(decoder.decode(payload))
            if "grpc-status" in fields:
                found[number] = fields["grpc-status"]
    return found


def test_connections_beyond_their_number_are_closed_at_once() -> None:
    async def test(fronts: HttpFronts) -> None:
        clients = [await fronts.client() for _ in range(3)]
        for client in clients:
            assert await client.ask(GET) == LIVE
        assert await (await fronts.client()).rest() == b""
        async with connected(fronts.fronts) as (reader, _):
            assert await until_closed(reader) == b""
        await clients.pop().close()
        again = b""
        while not again:  # the server has to see that the client has left
            client = await fronts.client()
            client.send(GET)
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                again = await client.answer()
        assert again == LIVE

    native_http.run(test, limits=LimitsConfig(connections=3))


def test_an_address_has_connections_of_its_own() -> None:
    async def connect(fronts: HttpFronts, source: str) -> Client:
        host, port = fronts.native[:2]
        return Client(*await asyncio.open_connection(host, port, local_addr=(source, 0)))

    async def test(fronts: HttpFronts) -> None:
        flood = [await connect(fronts, "127.0.0.1") for _ in range(2)]
        for client in flood:
            assert await client.ask(GET) == LIVE
        third = await connect(fronts, "127.0.0.1")
        assert await third.rest() == b""
        neighbour = await connect(fronts, "127.0.0.9")
        assert await neighbour.ask(GET) == LIVE
        for client in (*flood, third, neighbour):
            await client.close()

    native_http.run(test, limits=LimitsConfig(connections_per_address=2))


def counted(fronts: HttpFronts) -> dict[str, int]:
    """Requests that were refused before their tenant was known."""
    return {reason: count for reason, count in fronts.fronts.threads.refusal_counts().items() if count}


def test_a_head_has_its_size_and_its_time() -> None:
    async def test(fronts: HttpFronts) -> None:
        large, slow, good = [await fronts.client() for _ in range(3)]
        large.send(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X-Y: zzzzzzzz\r\n" * 100)
        answer = await large.rest()
        assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert RefusalReason.HEAD.text.encode() in answer
        whole = await fronts.client()
        whole.send(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X-Y: zzzzzzzz\r\n" * 100 + b"\r\n")
        assert (await whole.rest()).startswith(b"HTTP/1.1 431 ")
        slow.send(b"GET /v2/health/live HT")
        answer = await slow.rest()
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n") and RefusalReason.SLOW.text.encode() in answer
        assert await good.ask(GET) == LIVE
        assert counted(fronts) == {RefusalReason.HEAD: 2, RefusalReason.SLOW: 1}

    native_http.run(test, limits=LimitsConfig(header_bytes=1024, head_s=SOON_S))


def test_a_body_has_its_time() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        expected = await fronts.learn(client, PLAIN)
        planned, passed_on, chunked = [await fronts.client() for _ in range(3)]
        planned.send(PLAIN[:-1])
        assert (await planned.rest()).startswith(b"HTTP/1.1 408 ")
        passed_on.send(post(b"{}", None, path="/v2/repository/index")[:-1])
        assert await passed_on.rest() == b""
        assert await (await fronts.client()).ask(PLAIN) == expected
        chunked.send(
            f"POST {native_http.INFER} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab".encode()
        )
        assert await chunked.rest() == b""

    native_http.run(test, limits=LimitsConfig(body_s=SOON_S, idle_s=2 * SOON_S))


def test_a_grpc_client_has_time_for_its_settings_heads_and_messages() -> None:
    async def test(fronts: Fronts) -> None:
        async with AsyncExitStack() as stack:
            silent, _ = await stack.enter_async_context(connected(fronts, greets=False))
            begun, writer = await stack.enter_async_context(connected(fronts, greets=False))
            writer.write(frames.PREFACE[:10])
            blocked, writer = await stack.enter_async_context(connected(fronts))
            writer.write(frame(frames.HEADERS, 0, 1, hpack.encode(HEAD)))
            for reader in (silent, begun, blocked):
                await until_closed(reader)
        message = frames.message_prefix(len(encoded())) + encoded()
        async with connected(fronts) as (reader, writer):
            writer.write(head(1) + head(3) + frame(frames.DATA, 0, 3, message[:20]))
            writer.write(head(5, STREAM) + frame(frames.DATA, 0, 5, message[:20]) + head(7, STREAM))
            sent = b""
            while len(statuses(sent)) < 3:
                sent += await reader.read(1 << 16)
            assert statuses(sent) == dict.fromkeys((1, 3, 5), str(grpc.StatusCode.DEADLINE_EXCEEDED.value[0]))
            writer.write(frame(frames.DATA, frames.END_STREAM, 7, message))  # a stream may be silent
            while 7 not in statuses(sent):
                sent += await reader.read(1 << 16)
            assert statuses(sent)[7] == "0"

    native_front.run(test, limits=LimitsConfig(head_s=SOON_S, body_s=SOON_S))


def test_an_idle_grpc_connection_is_left_with_a_word() -> None:
    async def test(fronts: Fronts) -> None:
        message = frames.message_prefix(len(encoded())) + encoded()
        async with connected(fronts) as (reader, writer):
            writer.write(head(1) + frame(frames.DATA, frames.END_STREAM, 1, message))
            sent = await until_closed(reader)
        assert statuses(sent) == {1: "0"}
        assert parse_frames(sent)[-1] == (frames.GOAWAY, 0, 0, b"\0\0\0\1" + bytes(4))
        channel = fronts.channel()
        for _ in range(2):
            assert (await ask(channel, encoded())).code is grpc.StatusCode.OK

    native_front.run(test, limits=LimitsConfig(idle_s=SOON_S))


def test_who_does_not_read_is_cut_off() -> None:
    async def test(fronts: Fronts) -> None:
        many = encoded([[1, 2, 3, 4]] * 8, [[1, 2]] * 8)
        message = frames.message_prefix(len(many)) + many
        async with connected(fronts) as (_, writer):
            writer.write(setting(frames.INITIAL_WINDOW_SIZE, 2**31 - 1) + word(frames.WINDOW_UPDATE, 0, 2**30))
            writer.transport.pause_reading()
            for number in range(1, 1 << 20, 2):
                writer.write(head(number) + frame(frames.DATA, frames.END_STREAM, number, message))
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                if writer.is_closing():
                    break
            assert writer.is_closing()
        assert (await ask(fronts.channel(), encoded())).code is grpc.StatusCode.OK

    native_front.run(test, limits=LimitsConfig(unread_s=SOON_S))


def test_messages_beyond_the_memory_are_refused_before_they_come() -> None:
    """A connection may have twice the largest message."""

    async def test(fronts: Fronts) -> None:
        announced = frames.message_prefix(LIMIT) + bytes(100)
        async with connected(fronts) as (reader, writer):
            for number in (1, 3, 5, 7):
                writer.write(head(number) + frame(frames.DATA, 0, number, announced))
            sent = b""
            while len(statuses(sent)) < 2:
                sent += await reader.read(1 << 16)
            assert set(statuses(sent).values()) == {str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])}
            assert (await ask(fronts.channel(), encoded())).code is grpc.StatusCode.OK

    native_front.run(test, limits=LimitsConfig(memory_mb=1))


def test_requests_of_an_unusual_form_are_refused_when_python_has_enough() -> None:
    async def test(fronts: HttpFronts) -> None:
        engine = fronts.fronts.engine
        channel = fronts.fronts.channel()
        expected = await fronts.learn(await fronts.client(), PLAIN)
        engine.gate = asyncio.Event()
        asked = len(engine.deadlines)
        held = [asyncio.create_task(ask(channel, encoded(model=name))) for name in ("one", "two")]
        while len(engine.deadlines) < asked + 2:
            await asyncio.sleep(0)
        busy = Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, RefusalReason.BUSY.text)
        assert await ask(channel, encoded(model="one")) == busy
        client = await fronts.client()
        odd = PLAIN.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nExpect: nothing\r\n")
        answer = await client.ask(odd)
        assert answer.startswith(b"HTTP/1.1 503 ") and RefusalReason.BUSY.text.encode() in answer
        assert await client.ask(GET) == LIVE  # an operator gets through
        assert await client.ask(PLAIN) == expected  # and so does what has a plan
        assert counted(fronts) == {RefusalReason.BUSY: 2}
        engine.gate.set()
        assert {answer.code for answer in await asyncio.gather(*held)} == {grpc.StatusCode.OK}
        engine.gate = None
        assert (await ask(channel, encoded(model="one"))).code is grpc.StatusCode.OK

    native_http.run(test, limits=LimitsConfig(unplanned_requests=2))


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_empty_messages_of_a_stream_have_a_bound() -> None:
    async def test(fronts: Fronts) -> None:
        fronts.engine.gate = asyncio.Event()
        async with connected(fronts) as (reader, writer):
            writer.write(head(1, STREAM))
            before = resident_mb()
            for _ in range(60):
                writer.write(frame(frames.DATA, 0, 1, frames.message_prefix(0) * 1000))
                await writer.drain()
            sent = b""
            while not statuses(sent):
                sent += await reader.read(1 << 16)
            assert statuses(sent) == {1: str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])}
            assert resident_mb() < before + 30
            fronts.engine.gate.set()

    native_front.run(test)

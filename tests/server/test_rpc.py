"""The gRPC server against the clients of grpcio and against what breaks the protocol."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import grpc
import pytest
import uvloop
from grpc_health.v1 import health_pb2

from veltair.errors import OverloadedError
from veltair.grpc.http2 import frames as http2
from veltair.grpc.http2 import hpack
from veltair.grpc.http2.connection import MOST_RESETS
from veltair.grpc.server import Method, Server

LIMIT_BYTES = 20 << 20
WAIT_S = 20.0
HEAD = [(":method", "POST"), (":scheme", "http"), (":path", "/t/echo"), ("content-type", "application/grpc")]


class Reply(NamedTuple):
    data: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 (protobuf's name)
        return self.data


class Service:
    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.read = 0

    async def echo(self, request: bytes, context: Any) -> Reply:
        return Reply(request)

    async def size(self, request: bytes, context: Any) -> Reply:
        return Reply(str(len(request)).encode())

    async def metadata(self, request: bytes, context: Any) -> Reply:
        left = context.time_remaining()
        return Reply(repr((dict(context.invocation_metadata()).get("k"), left and round(left / 10))).encode())

    async def hang(self, request: bytes, context: Any) -> Reply:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return Reply(b"")

    async def refuse(self, request: bytes, context: Any) -> Reply:
        raise OverloadedError("too much: 100 % of ünits\n")

    async def stumble(self, request: bytes, context: Any) -> Reply:
        raise RuntimeError("a defect")

    async def both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Reply]:
        async for request in requests:
            yield Reply(request)

    async def idle(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Reply]:
        async for request in requests:
            self.read += len(request)
            yield Reply(b"one")
            await self.cancelled.wait()


def parse(data: memoryview) -> bytes:
    return bytes(data)


def methods(service: Service) -> dict[str, Method]:
    unary = {f"/t/{f.__name__}": Method(f, parse, False, False, False) for f in (
        service.echo, service.size, service.metadata, service.hang, service.refuse, service.stumble
    )}  # fmt: skip
    check = Method(service.echo, lambda d: health_pb2.HealthCheckRequest.FromString(bytes(d)), False, False, False)
    return (
        unary
        | {f"/t/{f.__name__}": Method(f, parse, True, True, True) for f in (service.both, service.idle)}
        | {"/t/check": check}
    )


def served(body: Callable[[Any, Server, Service, int], Awaitable[None]]) -> None:
    """Run `body` with a channel to a server, that server, its service and its port."""

    async def run() -> None:
        service = Service()
        server = Server(methods(service), LIMIT_BYTES)
        port = await server.start("127.0.0.1", 0)
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        async with asyncio.timeout(WAIT_S), grpc.aio.insecure_channel(f"127.0.0.1:{port}", unlimited) as channel:
            await body(channel, server, service, port)
        await server.stop(0)

    uvloop.run(run())


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_messages_of_any_size(compression: Any) -> None:
    async def body(channel: Any, *_: Any) -> None:
        call = channel.unary_unary("/t/echo")
        for size in (0, 1, 5, 16379, 16384, 70_001, 602_112, 3_000_003, 9_000_000):
            sent = os.urandom(size)
            assert await call(sent, compression=compression) == sent
        assert await channel.unary_unary("/t/size")(bytes(LIMIT_BYTES)) == str(LIMIT_BYTES).encode()

    served(body)


def test_any_address_is_that_of_both_families() -> None:
    async def run() -> None:
        server = Server(methods(Service()), LIMIT_BYTES)
        port = await server.start("::", 0)
        for host in ("127.0.0.1", "[::1]"):
            async with asyncio.timeout(WAIT_S), grpc.aio.insecure_channel(f"{host}:{port}") as channel:
                assert await channel.unary_unary("/t/echo")(b"a") == b"a"
        await server.stop(0)

    uvloop.run(run())


def test_many_calls_at_once() -> None:
    async def body(channel: Any, *_: Any) -> None:
        call, sent = channel.unary_unary("/t/echo"), [os.urandom(997 * i) for i in range(120)]
        assert await asyncio.gather(*map(call, sent)) == sent

    served(body)


@pytest.mark.parametrize(
    ("method", "request_", "code", "text"),
    [
        ("nope", b"", grpc.StatusCode.UNIMPLEMENTED, "no method '/t/nope'"),
        ("refuse", b"", grpc.StatusCode.UNAVAILABLE, "too much: 100 % of ünits\n"),
        ("stumble", b"", grpc.StatusCode.INTERNAL, "internal error"),
        ("check", b"\x0a\x05", grpc.StatusCode.INTERNAL, "no message of its type"),
        ("echo", bytes(LIMIT_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED, f"{LIMIT_BYTES} bytes are allowed"),
    ],
)
def test_refusals(method: str, request_: bytes, code: grpc.StatusCode, text: str) -> None:
    async def body(channel: Any, *_: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
            await channel.unary_unary(f"/t/{method}")(request_)
        assert caught.value.code() is code
        assert await channel.unary_unary("/t/echo")(b"the connection lives") == b"the connection lives"

    served(body)


def test_metadata_and_deadline() -> None:
    async def body(channel: Any, *_: Any) -> None:
        call = channel.unary_unary("/t/metadata")
        assert await call(b"") == b"(None, None)"
        assert await call(b"", metadata=[("k", "v")], timeout=70) == b"('v', 7)"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t/hang")(b"", timeout=0.05)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    served(body)


def test_cancelled_calls_and_lost_clients() -> None:
    async def body(channel: Any, server: Server, service: Service, port: int) -> None:
        for end in (lambda call: call.cancel(), None):
            service.cancelled.clear()
            other = grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])
            call = other.unary_unary("/t/hang")(b"")
            while not any(connection.streams for connection in server.connections):
                await asyncio.sleep(0)
            if end is not None:
                end(call)
            else:
                await other.close()
            await service.cancelled.wait()
            await other.close()

    served(body)


def test_streams() -> None:
    async def body(channel: Any, *_: Any) -> None:
        sent = [os.urandom(size) for size in (0, 10, 1_000_000, 300_000, 5_000_000, 4)]
        got = [answer async for answer in channel.stream_stream("/t/both")(iter(sent))]
        assert got == sent

    served(body)


def test_a_stream_that_is_not_read_is_held_back() -> None:
    async def body(channel: Any, server: Server, service: Service, port: int) -> None:
        call = channel.stream_stream("/t/idle")()
        part, sent = bytes(1 << 20), 0
        try:
            async with asyncio.timeout(1.0):
                while True:
                    await call.write(part)
                    sent += 1
        except TimeoutError:
            pass
        (stream,) = [stream for connection in server.connections for stream in connection.streams.values()]
        assert service.read == len(part)
        assert 2 <= len(stream._requests) <= 2 + http2.STREAM_WINDOW_BYTES // len(part)  # type: ignore[attr-defined]
        call.cancel()

    served(body)


def test_stopping_waits_for_calls_that_run() -> None:
    async def body(channel: Any, server: Server, service: Service, port: int) -> None:
        call = channel.unary_unary("/t/hang")(b"")
        while not any(connection.streams for connection in server.connections):
            await asyncio.sleep(0)
        stopping = asyncio.create_task(server.stop(WAIT_S))
        await asyncio.sleep(0)
        assert not stopping.done()
        call.cancel()
        await stopping
        assert service.cancelled.is_set()

    served(body)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


REQUEST = frame(http2.HEADERS, http2.END_HEADERS, 1, hpack.encode(HEAD))
PADDED = http2.PADDED | http2.END_STREAM
BODY = http2.prefix(3) + b"abc"


def whole(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Frames as (kind, flags, stream, payload)."""
    frames = []
    while len(data) >= 9:
        size = int.from_bytes(data[:3], "big")
        frames.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return frames


def spoken(sent: bytes, enough: Callable[[list[Any]], bool], step: int = 1 << 20) -> list[Any]:
    """The frames that answer these bytes, sent `step` at a time, until there are enough or the server closed."""

    async def body(channel: Any, server: Server, service: Service, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in range(0, len(sent), step):
            writer.write(sent[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)
        data = b""
        while not enough(whole(data)) and (part := await reader.read(1 << 16)):
            data += part
        writer.close()
        found.extend(whole(data))

    found: list[Any] = []
    served(body)
    return found


def answered(frames: list[Any]) -> bool:
    return any(kind == http2.HEADERS and flags & http2.END_STREAM for kind, flags, _, _ in frames)


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    "sent",
    [
        REQUEST + frame(http2.DATA, http2.END_STREAM, 1, BODY),
        REQUEST + frame(http2.DATA, PADDED, 1, b"\x04" + BODY + bytes(4)),
        REQUEST + b"".join(frame(http2.DATA, 0, 1, bytes([b])) for b in BODY) + frame(http2.DATA, http2.END_STREAM, 1),
        frame(
            http2.HEADERS, http2.PADDED | http2.HAS_PRIORITY, 1, b"\x02" + bytes(5) + hpack.encode(HEAD[:2]) + b"\0\0"
        )
        + frame(http2.CONTINUATION, http2.END_HEADERS, 1, hpack.encode(HEAD[2:]))
        + frame(0x77, 0, 1, b"an unknown frame")
        + frame(http2.DATA, http2.END_STREAM, 1, BODY),
    ],
)
def test_frames_however_they_are_cut(sent: bytes, step: int) -> None:
    frames = spoken(http2.PREFACE + frame(http2.SETTINGS, 0, 0) + sent, answered, step)
    assert b"".join(payload for kind, _, _, payload in frames if kind == http2.DATA) == BODY
    (trailers,) = [payload for kind, flags, _, payload in frames if kind == http2.HEADERS and flags & http2.END_STREAM]
    assert hpack.Decoder().decode(trailers) == [("grpc-status", "0")]


def test_answers_wait_for_the_clients_windows() -> None:
    small = struct.pack(">HI", 4, 2)
    begin = http2.PREFACE + frame(http2.SETTINGS, 0, 0, small) + REQUEST + frame(http2.DATA, http2.END_STREAM, 1, BODY)

    def data(frames: list[Any]) -> bytes:
        return b"".join(payload for kind, _, _, payload in frames if kind == http2.DATA)

    frames = spoken(begin + frame(http2.PING, 0, 0, bytes(8)), lambda f: any(k == http2.PING for k, *_ in f))
    assert data(frames) == BODY[:2] and not answered(frames)
    more = frame(http2.WINDOW_UPDATE, 0, 1, struct.pack(">I", 3)) + frame(
        http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 100)
    )
    assert data(spoken(begin + more, answered)) == BODY


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", http2.PROTOCOL_ERROR),
        (frame(http2.DATA, 0, 1, b"a"), http2.PROTOCOL_ERROR),
        (frame(http2.DATA, 0, 0, b"a"), http2.PROTOCOL_ERROR),
        (REQUEST + frame(http2.DATA, http2.PADDED, 1, b"\x09abc"), http2.PROTOCOL_ERROR),
        (frame(http2.HEADERS, http2.END_HEADERS, 2, hpack.encode(HEAD)), http2.PROTOCOL_ERROR),
        (frame(http2.HEADERS, 0, 1, b"") + frame(http2.PING, 0, 0, bytes(8)), http2.PROTOCOL_ERROR),
        (frame(http2.CONTINUATION, 0, 1, b""), http2.PROTOCOL_ERROR),
        (frame(http2.HEADERS, 0, 1) + frame(http2.CONTINUATION, 0, 1, bytes(9000)) * 2, http2.ENHANCE_YOUR_CALM),
        (frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff"), http2.COMPRESSION_ERROR),
        (frame(http2.PING, 0, 0, bytes(1 << 15)), http2.FRAME_SIZE_ERROR),
        (frame(http2.RST_STREAM, 0, 1, b"\0"), http2.FRAME_SIZE_ERROR),
        (frame(http2.RST_STREAM, 0, 1, bytes(4)), http2.PROTOCOL_ERROR),
        (
            b"".join(
                frame(http2.HEADERS, http2.END_HEADERS, stream, hpack.encode(HEAD))
                + frame(http2.RST_STREAM, 0, stream, bytes(4))
                for stream in range(1, 2 * MOST_RESETS + 2, 2)
            ),
            http2.ENHANCE_YOUR_CALM,
        ),
        (frame(http2.WINDOW_UPDATE, 0, 0, bytes(4)), http2.PROTOCOL_ERROR),
        (frame(http2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), http2.FLOW_CONTROL_ERROR),
        (frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)), http2.FLOW_CONTROL_ERROR),
        (frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 5, 1)), http2.PROTOCOL_ERROR),
        (frame(http2.SETTINGS, 0, 0, b"abc"), http2.FRAME_SIZE_ERROR),
        (frame(http2.PUSH_PROMISE, 0, 1), http2.PROTOCOL_ERROR),
        (
            REQUEST.replace(b"/t/echo", b"/t/idle")
            + frame(http2.DATA, 0, 1, http2.prefix((1 << 20) - 5) + bytes((1 << 20) - 5)) * 8
            + frame(http2.DATA, 0, 1, b"\0"),
            http2.FLOW_CONTROL_ERROR,
        ),
    ],
)
def test_who_breaks_the_protocol_is_told_and_cut_off(sent: bytes, code: int) -> None:
    preface = b"" if sent.startswith(b"GET") else http2.PREFACE
    frames = spoken(preface + sent, lambda frames: False)
    (goodbye,) = [payload for kind, _, _, payload in frames if kind == http2.GOAWAY]
    assert int.from_bytes(goodbye[4:8], "big") == code


def test_requests_that_are_not_grpc() -> None:
    for fields, expected in (
        ([(":method", "GET"), *HEAD[1:]], (":status", "415")),
        ([*HEAD, ("grpc-timeout", "12x")], ("grpc-status", str(grpc.StatusCode.INTERNAL.value[0]))),
    ):
        sent = frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1, hpack.encode(fields))
        frames = spoken(http2.PREFACE + sent, answered)
        (head,) = [payload for kind, _, _, payload in frames if kind == http2.HEADERS]
        assert expected in hpack.Decoder().decode(head)

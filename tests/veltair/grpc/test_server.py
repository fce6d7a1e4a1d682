"""The gRPC server against the clients of grpcio."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, NamedTuple

import echo_server
import grpc
import pytest
import uvloop
from echo_server import KINDS, LIMIT_BYTES, WAIT_S, RunningServer, Service, new_server, run_with_server
from wire_frames import frame

from veltair.grpc.http2 import frames, hpack
from veltair.grpc.http2.frames import REQUEST_WINDOW_BYTES
from veltair.server.protocol.compressed_body import inflate

pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_messages_of_any_size(kind: str, compression: Any) -> None:
    async def body(channel: Any, *_: Any) -> None:
        call = channel.unary_unary("/t/echo")
        for size in (0, 1, 5, 16379, 16384, 70_001, 602_112, 3_000_003, 9_000_000):
            sent = os.urandom(size)
            assert await call(sent, compression=compression) == sent
        assert await channel.unary_unary("/t/size")(bytes(LIMIT_BYTES)) == str(LIMIT_BYTES).encode()

    run_with_server(kind, body)


def test_any_address_is_that_of_both_families(kind: str) -> None:
    async def run() -> None:
        server = new_server(kind, Service())
        port = await server.start("::", 0)
        for host in ("127.0.0.1", "[::1]"):
            async with asyncio.timeout(WAIT_S), grpc.aio.insecure_channel(f"{host}:{port}") as channel:
                assert await channel.unary_unary("/t/echo")(b"a") == b"a"
        await server.stop(0)

    uvloop.run(run())


def test_many_calls_at_once(kind: str) -> None:
    async def body(channel: Any, *_: Any) -> None:
        call, sent = channel.unary_unary("/t/echo"), [os.urandom(997 * i) for i in range(120)]
        assert await asyncio.gather(*map(call, sent)) == sent

    run_with_server(kind, body)


def test_compressed_messages_are_unpacked_off_the_event_loop(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one may be large inside: nobody else waits meanwhile."""
    threads = set()

    def unpack(data: bytes, coding: str, limit_bytes: int) -> bytes:
        threads.add(threading.current_thread())
        return inflate(data, coding, limit_bytes)

    async def body(channel: Any, *_: Any) -> None:
        sent, packed = [b"a", bytes(100_000), b"c"], grpc.Compression.Gzip
        assert await channel.unary_unary("/t/echo")(b"a", compression=packed) == b"a"
        call = channel.stream_stream("/t/both")(iter(sent), compression=packed)
        assert [answer async for answer in call] == sent
        for method in ("/t/echo", "/t/both"):
            with pytest.raises(grpc.aio.AioRpcError, match=f"more than the allowed {LIMIT_BYTES} bytes") as caught:
                bomb = channel.stream_stream(method)(iter([bytes(LIMIT_BYTES + 1)]), compression=packed)
                assert [answer async for answer in bomb] == []
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    monkeypatch.setattr(echo_server, "inflate", unpack)
    run_with_server(kind, body)
    assert threads and threading.main_thread() not in threads


ODD_CHANNELS = {
    "small frames": [("grpc.http2.max_frame_size", 16384), ("grpc.http2.lookahead_bytes", 1)],
    "no probes of bandwidth": [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 70_000)],
    "no table": [("grpc.http2.hpack_table_size.decoder", 0), ("grpc.http2.hpack_table_size.encoder", 0)],
    "a large table": [
        ("grpc.http2.hpack_table_size.decoder", 1 << 20),
        ("grpc.http2.hpack_table_size.encoder", 1 << 20),
    ],
    "small writes": [("grpc.http2.write_buffer_size", 1), ("grpc.optimize_for_latency", 1)],
    "pings": [("grpc.keepalive_time_ms", 10), ("grpc.http2.max_pings_without_data", 0)],
    "true binary": [("grpc.http2.true_binary", 1), ("grpc.primary_user_agent", "x" * 3000)],
}


@pytest.mark.parametrize("case", ODD_CHANNELS)
def test_odd_options_of_a_client(kind: str, case: str) -> None:
    async def body(channel: Any, server: RunningServer, service: Service, port: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), *ODD_CHANNELS[case]]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as odd:
            for size in (0, 5, 16_384, 400_000):
                metadata = [("k", "v" * (size % 1000)), ("b-bin", os.urandom(size % 300))]
                sent = os.urandom(size)
                assert await odd.unary_unary("/t/echo")(sent, metadata=metadata) == sent
            messages = [os.urandom(70_000)] * 5
            assert [answer async for answer in odd.stream_stream("/t/both")(iter(messages))] == messages

    run_with_server(kind, body)


class Refusal(NamedTuple):
    method: str
    request: bytes
    code: grpc.StatusCode
    text: str


TOO_LARGE = f"{LIMIT_BYTES} bytes are allowed"
REFUSALS = [
    Refusal("nope", b"", grpc.StatusCode.UNIMPLEMENTED, "no method '/t/nope'"),
    Refusal("refuse", b"", grpc.StatusCode.UNAVAILABLE, "too much: 100 % of ünits\n"),
    Refusal("stumble", b"", grpc.StatusCode.INTERNAL, "internal error"),
    Refusal("check", b"\x0a\x05", grpc.StatusCode.INTERNAL, "no message of its type"),
    Refusal("echo", bytes(LIMIT_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_LARGE),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.method)
def test_refusals(kind: str, refusal: Refusal) -> None:
    async def body(channel: Any, *_: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match=refusal.text) as caught:
            await channel.unary_unary(f"/t/{refusal.method}")(refusal.request)
        assert caught.value.code() is refusal.code
        assert await channel.unary_unary("/t/echo")(b"the connection lives") == b"the connection lives"

    run_with_server(kind, body)


NOT_SERVED, SERVED = (":status", "415"), (":status", "200")


@pytest.mark.parametrize(
    ("method", "content", "timeout", "expected"),
    [
        ("GET", "", "1S", NOT_SERVED),
        ("POST", "", "12x", ("grpc-status", str(grpc.StatusCode.INTERNAL.value[0]))),
        ("POST", "+proto", "1S", SERVED),
        ("POST", ";a=b", "1S", SERVED),
        ("POST", "-web", "1S", NOT_SERVED),
        ("POST", "-web-text+proto", "1S", NOT_SERVED),
        ("POST", "x", "1S", NOT_SERVED),
    ],
)
def test_requests_that_are_not_grpc(kind: str, method: str, content: str, timeout: str, expected: hpack.Field) -> None:
    block = hpack.encode(
        [
            (":method", method),
            (":scheme", "http"),
            (":path", "/t/echo"),
            ("content-type", f"application/grpc{content}"),
            ("grpc-timeout", timeout),
        ]
    )
    flags = frames.END_HEADERS | frames.END_STREAM

    async def body(channel: Any, server: RunningServer, service: Service, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frames.PREFACE + frame(frames.SETTINGS, 0, 0) + frame(frames.HEADERS, flags, 1, block))
        kind = None
        while kind != frames.HEADERS:
            high, low, kind, *_ = frames.FRAME_HEAD.unpack(await reader.readexactly(frames.FRAME_HEAD.size))
            payload = await reader.readexactly(high << 16 | low)
        writer.close()
        assert expected in hpack.Decoder().decode(payload)

    run_with_server(kind, body)


def test_metadata_and_deadline(kind: str) -> None:
    async def body(channel: Any, *_: Any) -> None:
        call = channel.unary_unary("/t/metadata")
        assert await call(b"") == b"(None, None)"
        assert await call(b"", metadata=[("k", "v")], timeout=70) == b"('v', 7)"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t/hang")(b"", timeout=0.05)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    run_with_server(kind, body)


def test_cancelled_calls_and_lost_clients(kind: str) -> None:
    async def body(channel: Any, server: RunningServer, service: Service, port: int) -> None:
        for end in (lambda call: call.cancel(), None):
            service.cancelled.clear()
            other = grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])
            call = other.unary_unary("/t/hang")(b"")
            while not server.calls:
                await asyncio.sleep(0)
            if end is not None:
                end(call)
            else:
                await other.close()
            await service.cancelled.wait()
            await other.close()

    run_with_server(kind, body)


def test_streams(kind: str) -> None:
    async def body(channel: Any, *_: Any) -> None:
        sent = [os.urandom(size) for size in (0, 10, 1_000_000, 300_000, 5_000_000, 4)]
        got = [answer async for answer in channel.stream_stream("/t/both")(iter(sent))]
        assert got == sent

    run_with_server(kind, body)


def test_a_stream_that_is_not_read_is_held_back(kind: str) -> None:
    async def body(channel: Any, server: RunningServer, service: Service, port: int) -> None:
        call = channel.stream_stream("/t/idle")()
        part, sent = bytes(1 << 20), 0
        try:
            async with asyncio.timeout(1.0):
                while True:
                    await call.write(part)
                    sent += 1
        except TimeoutError:
            pass
        (running,) = server.calls
        assert service.read == len(part)
        assert 2 <= len(running._requests) <= 2 + REQUEST_WINDOW_BYTES // len(part)
        call.cancel()

    run_with_server(kind, body)


def test_stopping_waits_for_calls_that_run(kind: str) -> None:
    async def body(channel: Any, server: RunningServer, service: Service, port: int) -> None:
        call = channel.unary_unary("/t/hang")(b"")
        while not server.calls:
            await asyncio.sleep(0)
        stopping = asyncio.create_task(server.stop(WAIT_S))
        await asyncio.sleep(0)
        assert not stopping.done()
        call.cancel()
        await stopping
        assert service.cancelled.is_set()

    run_with_server(kind, body)

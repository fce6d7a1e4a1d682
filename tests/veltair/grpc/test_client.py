"""The gRPC client against servers that allow little, refuse, or announce too much."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import uvloop

from veltair.grpc.client import CallLostError, GrpcChannel, encode_request_head
from veltair.grpc.http2 import hpack
from veltair.grpc.http2.frames import DATA, HEADERS, REFUSED_STREAM, message_prefix
from veltair.grpc.http2.stream import Stream
from veltair.grpc.transport import AsyncioConnection

HEAD = encode_request_head("127.0.0.1", "/t/call")
EMPTY = message_prefix(0)


async def start_grpcio_server(handler: Any, max_streams: int, more: Any = ()) -> tuple[Any, GrpcChannel]:
    server = grpc.aio.server(
        options=[("grpc.max_concurrent_streams", max_streams), ("grpc.max_receive_message_length", -1), *more]
    )
    methods = {"call": grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, GrpcChannel("127.0.0.1", port)


async def start_server(accept: Callable[[], Stream]) -> tuple[asyncio.Server, GrpcChannel]:
    server = await asyncio.get_running_loop().create_server(lambda: AsyncioConnection(accept), "127.0.0.1", 0)
    return server, GrpcChannel("127.0.0.1", server.sockets[0].getsockname()[1])


async def call(channel: GrpcChannel, request: bytes = EMPTY) -> bytes:
    return bytes(await (await channel.connect()).call(HEAD, request))


def test_no_more_calls_at_once_than_the_server_takes() -> None:
    running = most = 0

    async def handler(request: bytes, context: Any) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return request * 40  # more than the first window

    async def run() -> list[bytes]:
        server, channel = await start_grpcio_server(handler, max_streams=3)
        responses = await asyncio.gather(*(call(channel, message_prefix(100_000) + bytes(100_000)) for _ in range(20)))
        channel.close()
        await server.stop(0)
        return responses

    assert set(uvloop.run(run())) == {bytes(4_000_000)}
    assert 1 <= most <= 3


ODD_SERVERS = {
    "small frames": [("grpc.http2.max_frame_size", 16384)],
    "small windows": [("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0)],
    "no table": [("grpc.http2.hpack_table_size.decoder", 0), ("grpc.http2.hpack_table_size.encoder", 0)],
    "pings": [("grpc.keepalive_time_ms", 10), ("grpc.keepalive_permit_without_calls", 1)],
}


@pytest.mark.parametrize("case", ODD_SERVERS)
def test_odd_options_of_a_server(case: str) -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        await context.send_initial_metadata([("begin-bin", bytes(range(256)))])
        context.set_trailing_metadata([("k", "v" * 1000)])
        return request

    async def run() -> None:
        server, channel = await start_grpcio_server(handler, 3, ODD_SERVERS[case])
        for size in (0, 5, 16_384, 1_000_000):
            sent = os.urandom(size)
            assert await call(channel, message_prefix(size) + sent) == sent
        channel.close()
        await server.stop(0)

    uvloop.run(run())


class SilentStream(Stream):
    """Ignores all that comes."""

    def headers_received(self, fields: list[hpack.Field]) -> None: ...

    def message_received(self, data: memoryview, *, compressed: bool) -> None: ...

    def message_too_large(self, size: int) -> None: ...

    def aborted(self, code: int | None) -> None: ...

    def end_received(self) -> None: ...


class OverlongResponse(SilentStream):
    """Announces a response of 2 GiB and sends 100 bytes of it."""

    def end_received(self) -> None:
        self.queue(HEADERS, hpack.encode([(":status", "200"), ("content-type", "application/grpc")]))
        self.send(DATA, message_prefix(1 << 31) + bytes(100))


def test_an_answer_too_large_for_protobuf_is_not_waited_for() -> None:
    async def run() -> None:
        server, channel = await start_server(lambda: OverlongResponse(100))
        with pytest.raises(CallLostError, match=r"^an answer of 2147483648 bytes was announced$"):
            await call(channel)
        channel.close()
        server.close()

    uvloop.run(run())


class RefusesSecondCall(SilentStream):
    """Of one connection's calls the second is refused unread; the first is answered only then."""

    first: "RefusesSecondCall"

    def end_received(self) -> None:
        if self.number == 1:
            RefusesSecondCall.first = self
        elif self.number == 3:
            self.reset(REFUSED_STREAM)
            RefusesSecondCall.first.answer()
        else:
            self.answer()

    def answer(self) -> None:
        self.queue(HEADERS, hpack.encode([(":status", "200"), ("content-type", "application/grpc")]))
        self.queue(DATA, EMPTY)
        self.send(HEADERS, hpack.encode([("grpc-status", "0")]), end=True)


def test_a_call_that_was_refused_unread_is_made_again() -> None:
    async def run() -> list[bytes]:
        server, channel = await start_server(lambda: RefusesSecondCall(100))
        await channel.connect()
        responses = await asyncio.gather(call(channel), call(channel))
        channel.close()
        server.close()
        return responses

    assert uvloop.run(run()) == [b"", b""]


def test_a_caller_that_gave_up_waiting_takes_nobodys_turn() -> None:
    arrived, let_go = asyncio.Event(), asyncio.Event()

    async def handler(request: bytes, context: Any) -> bytes:
        if request == b"slow":
            arrived.set()
            await let_go.wait()
        return request

    async def run() -> list[bytes]:
        server, channel = await start_grpcio_server(handler, max_streams=1)
        slow = asyncio.create_task(call(channel, message_prefix(4) + b"slow"))
        await arrived.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await call(channel)
        behind = asyncio.create_task(call(channel))
        let_go.set()
        responses = [await slow, await behind]
        channel.close()
        await server.stop(0)
        return responses

    assert uvloop.run(run()) == [b"slow", b""]

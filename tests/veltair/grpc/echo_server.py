"""A gRPC server for tests, whose methods echo, refuse, fail or hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

import grpc
import uvloop
from grpc_health.v1 import health_pb2

from veltair.config import LimitsConfig
from veltair.errors import QueryError
from veltair.grpc.server import Server
from veltair.grpc.server_call import Method, ServerCall
from veltair.server.protocol.compressed_body import inflate
from veltair.server.wire.io_threads import IoThreads

LIMIT_BYTES = 20 << 20
WAIT_S = 60.0  # a test that takes so long has failed, also on a busy machine


class Reply(NamedTuple):
    data: bytes

    def SerializeToString(self, *, deterministic: bool) -> bytes:  # noqa: N802 (protobuf's name)
        return self.data


class TooMuchError(QueryError):
    grpc_code = "UNAVAILABLE"


class Service:
    """Methods of each kind, well behaved and not."""

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
        raise TooMuchError("too much: 100 % of ünits\n")

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


def parse_health_check(data: memoryview) -> Any:
    return health_pb2.HealthCheckRequest.FromString(bytes(data))


def methods_of(service: Service) -> dict[str, Method]:
    handlers = (service.echo, service.size, service.metadata, service.hang, service.refuse, service.stumble)
    unary = {f"/t/{f.__name__}": Method(f, parse, False, False, False) for f in handlers}
    streaming = {f"/t/{f.__name__}": Method(f, parse, True, True, True) for f in (service.both, service.idle)}
    return unary | streaming | {"/t/check": Method(service.echo, parse_health_check, False, False, False)}


class RunningServer(Protocol):
    """A server of either kind, as tests see it."""

    @property
    def calls(self) -> Sequence[ServerCall]: ...  # those that run

    async def start(self, host: str, port: int) -> int: ...

    async def stop(self, grace_s: float) -> None: ...


class PythonServer(Server):
    """The one whose connections live in Python."""

    @property
    def calls(self) -> list[Any]:
        return [stream for connection in self.connections for stream in connection.streams.values()]


class NativeServer:
    """The one whose connections live in C, without plans: every call is Python's."""

    def __init__(self, methods: dict[str, Method], threads: int = 1) -> None:
        self._methods = methods
        self._threads = IoThreads(
            threads,
            infer_path="/t/infer",
            tenant_header="tenant",
            max_message_bytes=LIMIT_BYTES,
            max_body_bytes=LIMIT_BYTES,
            limits=LimitsConfig(),
        )

    @property
    def calls(self) -> list[Any]:
        calls = self._threads._python_calls
        return [] if calls is None else list(calls._calls.values())

    async def start(self, host: str, port: int) -> int:
        return await self._threads.listen(host, port, self._methods, inflate, lambda counts: None)

    async def stop(self, grace_s: float) -> None:
        await self._threads.stop(grace_s)


KINDS = ("python", "native")


def new_server(kind: str, service: Service) -> RunningServer:
    methods = methods_of(service)
    return PythonServer(methods, LIMIT_BYTES, inflate) if kind == "python" else NativeServer(methods)


def run_with_server(kind: str, body: Callable[[Any, RunningServer, Service, int], Awaitable[None]]) -> None:
    """Run `body` with a channel of grpcio to a server of a kind, that server, its service and its port."""

    async def run() -> None:
        service = Service()
        server = new_server(kind, service)
        port = await server.start("127.0.0.1", 0)
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        try:
            async with asyncio.timeout(WAIT_S), grpc.aio.insecure_channel(f"127.0.0.1:{port}", unlimited) as channel:
                await body(channel, server, service, port)
        finally:
            await server.stop(0)

    uvloop.run(run())

"""A gRPC server in the test's own loop that does to each call what the request says, and runs of loads against it.

A request is text: a verb and its arguments. `ok`; `status NUMBER TEXT`; `hold` (answered by `release`); `hang`; `drop`
(closes the connection); `half` (closes it in the middle of the answer); `reset CODE`; `overlong` (announces 2 GiB);
`http STATUS` (no status of gRPC); `early` (answers before the request has ended); `leave` (answers, and takes no more
calls on this connection).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import uvloop

from veltair.grpc.http2 import hpack
from veltair.grpc.http2.frames import DATA, HEADERS, message_prefix
from veltair.grpc.http2.stream import Stream
from veltair.grpc.transport import AsyncioConnection
from veltair.loadgen.grpc_client import GrpcClient
from veltair.loadgen.http_client import HttpClient
from veltair.loadgen.native_sender import NativeRun
from veltair.loadgen.open_loop import ArrivalSchedule, RunCounts, Trace, run_open_loop
from veltair.loadgen.tenant_streams import TenantStream

MS = 1_000_000
WAIT_S = 60.0
HEAD = [(":status", "200"), ("content-type", "application/grpc")]


class ScriptedCall(Stream):
    def __init__(self, server: ScriptedServer) -> None:
        super().__init__(1 << 28)
        self.server, self.request = server, ""

    def headers_received(self, fields: list[hpack.Field]) -> None: ...

    def message_too_large(self, size: int) -> None: ...

    def aborted(self, code: int | None) -> None:
        self.server.aborted.append(code)

    def message_received(self, data: memoryview, *, compressed: bool) -> None:
        self.request = bytes(data).decode()

    def end_received(self) -> None:
        self.server.act(self)

    def answer(self, *fields: hpack.Field) -> None:
        self.queue(HEADERS, hpack.encode(HEAD))
        self.queue(DATA, message_prefix(3) + b"abc")
        self.send(HEADERS, hpack.encode([("x", "y"), *fields]), end=True)


class ScriptedServer:
    def __init__(self, new_call: Callable[[ScriptedServer], Stream] = ScriptedCall) -> None:
        self.requests: list[str] = []
        self.requests_by_connection: defaultdict[object, list[str]] = defaultdict(list)
        self.held: list[ScriptedCall] = []
        self.aborted: list[int | None] = []
        self.connections: list[AsyncioConnection] = []
        self.on_request: Callable[[], object] = lambda: None
        self._new_call = new_call

    async def start(self, port: int = 0) -> int:
        self._listening = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", port)
        bound: int = self._listening.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        """Listen no more, and close all connections."""
        self._listening.close()
        for connection in self.connections:
            connection.transport.close()

    def _accept(self) -> AsyncioConnection:
        self.connections.append(AsyncioConnection(lambda: self._new_call(self)))
        return self.connections[-1]

    def act(self, call: ScriptedCall) -> None:
        self.requests.append(call.request)
        self.requests_by_connection[call.connection].append(call.request)
        match call.request.split():
            case ["ok", *_]:
                call.answer(("grpc-status", "0"))
            case ["status", number, *text]:
                call.answer(("grpc-status", number), ("grpc-message", " ".join(text)))
            case ["hold", *_]:
                self.held.append(call)
            case ["drop"]:
                call.connection.transport.close()
            case ["half"]:
                call.queue(HEADERS, hpack.encode(HEAD))
                call.send(DATA, message_prefix(100_000) + bytes(1000))
                call.connection.transport.close()
            case ["reset", code]:
                call.reset(int(code))
            case ["overlong"]:
                call.queue(HEADERS, hpack.encode(HEAD))
                call.send(DATA, message_prefix(1 << 31) + bytes(100))
            case ["http", status]:
                call.send(HEADERS, hpack.encode([(":status", status)]), end=True)
            case ["leave"]:
                call.connection.leave()
                call.answer(("grpc-status", "0"))
        self.on_request()

    def release(self) -> None:
        for call in self.held:
            call.answer(("grpc-status", "0"))
        self.held.clear()


def one_stream(requests: Sequence[str], target_ms: float = 10.0) -> list[TenantStream]:
    messages = tuple(message_prefix(len(data)) + data for data in map(str.encode, requests))
    return [TenantStream("a", 1.0, round(target_ms * MS), 0.95, messages)]


def one_by_one(count: int, gap_ms: float, window_ms: float = 0.0) -> ArrivalSchedule:
    """Each of the stream's requests once, in order."""
    arrival = (np.arange(count) * gap_ms * MS).astype(np.int64)
    window = max(round(window_ms * MS), round(count * gap_ms * MS), MS)
    return ArrivalSchedule(arrival, np.zeros(count, np.int64), np.arange(count), (0, window))


async def send_native(
    client: GrpcClient | HttpClient,
    streams: Sequence[TenantStream],
    schedule: ArrivalSchedule,
    stop: asyncio.Event,
    counts: RunCounts | None = None,
) -> Trace:
    return await NativeRun(client.call_settings, streams, schedule, counts or RunCounts()).run(stop)


SENDERS: dict[str, Callable[..., Awaitable[Trace]]] = {"python": run_open_loop, "native": send_native}


def play(
    sender: str,
    streams: list[TenantStream],
    schedule: ArrivalSchedule,
    *,
    server: ScriptedServer | None = None,
    timeout_s: float = WAIT_S,
    connections: int = 1,
    before: Callable[[ScriptedServer, asyncio.Event], Any] = lambda server, stop: None,
) -> tuple[Trace, ScriptedServer]:
    """Run a load against a scripted server; `before` may prepare it once the client is connected."""
    own = server or ScriptedServer()
    return run_load(GrpcClient, own, sender, streams, schedule, timeout_s, connections, before), own


def run_load(
    kind: Callable[[str, int, float], Any],
    server: Any,
    sender: str,
    streams: list[TenantStream],
    schedule: ArrivalSchedule,
    timeout_s: float,
    connections: int,
    before: Callable[[Any, asyncio.Event], Any],
) -> Trace:
    """Start the server, connect a client of this kind, and send the load."""

    async def run() -> Trace:
        client = kind("127.0.0.1", await server.start(), timeout_s)
        await client.open(connections)
        stop = asyncio.Event()
        before(server, stop)
        try:
            return await asyncio.wait_for(SENDERS[sender](client, streams, schedule, stop), WAIT_S)
        finally:
            await client.close()
            server.close()

    return uvloop.run(run())


def failures(trace: Trace) -> Counter[str]:
    return Counter({why: count for (_, why), count in trace.failures.items()})

"""A gRPC server: what that of `grpc.aio` does for the daemon's front, in less than half of its CPU time.

Methods of a servicer are called as `grpc.aio` calls them, with a `ServerCall` as their context. Not supported:
compressed responses, interceptors, initial and trailing metadata.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from veltair.grpc.http2.frames import CANCEL, PING, PING_BYTES
from veltair.grpc.http2.stream import Stream
from veltair.grpc.server_call import Decompress, Method, ServerCall
from veltair.grpc.transport import AsyncioConnection

BACKLOG = 2048  # connections that the system holds until they are accepted


def methods_by_path(
    service: Any, servicer: object, parsers: Mapping[str, Callable[[memoryview], Any]] | None = None
) -> dict[str, Method]:
    """The methods of a servicer by their path.

    Args:
        service: its protobuf descriptor.
        servicer: has a method of each name.
        parsers: of requests that protobuf alone does not parse, by the name of their message type.
    """
    methods = {}
    for method in service.methods:
        own = (parsers or {}).get(method.input_type.name)
        parse = own or _protobuf_parser(GetMessageClass(method.input_type))
        handler = getattr(servicer, method.name)
        methods[f"/{service.full_name}/{method.name}"] = Method(
            handler, parse, method.client_streaming, method.server_streaming, inspect.isasyncgenfunction(handler)
        )
    return methods


def _protobuf_parser(message: Any) -> Callable[[memoryview], Any]:
    return lambda data: message.FromString(bytes(data))


class ClientConnection(AsyncioConnection):
    """The server's end of one client's connection, listed by its server as long as it is open.

    ::

        await loop.create_server(lambda: ClientConnection(server), sock=listener)
    """

    def __init__(self, server: Server) -> None:
        super().__init__(server.new_call)
        self._server = server
        self._ended = False  # the client sends no more

    def eof_received(self) -> bool:
        """A client that closes its side waits for the answers to calls that it has ended, or has left: then the reset
        that a ping brings closes the connection. Returns whether it stays open."""
        self._ended = True
        for stream in [each for each in self.streams.values() if each.remote_open]:
            self.drop(stream)
            stream.aborted(CANCEL)
        if self.streams:
            self.write_frame(PING, 0, 0, bytes(PING_BYTES))
        return bool(self.streams)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._server.connections.discard(self)

    def drop(self, stream: Stream) -> None:
        super().drop(stream)
        self._server.call_ended()
        if self._ended and not self.streams:
            self.transport.close()


class Server:
    """A gRPC server on one port.

    ::

        server = Server(methods_by_path(descriptor, servicer), max_request_bytes=1 << 24, decompress=inflate)
        port = await server.start("127.0.0.1", 0)
        await server.stop(grace_s=5)

    Args:
        methods: by path.
        max_request_bytes: largest request, compressed or not.
        decompress: for requests that come compressed.
    """

    def __init__(self, methods: Mapping[str, Method], max_request_bytes: int, decompress: Decompress) -> None:
        self.connections: set[ClientConnection] = set()
        self._methods, self._max_request_bytes, self._decompress = methods, max_request_bytes, decompress
        self._listening: asyncio.Server | None = None
        self._idle: asyncio.Future[None] | None = None  # awaited by `stop`

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises OSError."""
        v6 = ":" in host
        family = socket.AF_INET6 if v6 else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=v6)
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: ClientConnection(self), sock=listener, backlog=BACKLOG)
        bound: int = listener.getsockname()[1]
        return bound

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls, let running ones end within the grace, then close the connections."""
        if self._listening is not None:
            self._listening.close()
        for connection in self.connections:
            connection.leave()
        self._idle = asyncio.get_running_loop().create_future()
        self.call_ended()
        await asyncio.wait([self._idle], timeout=grace_s)
        for connection in list(self.connections):
            connection.transport.close()

    def new_call(self) -> ServerCall:
        return ServerCall(self._methods, self._max_request_bytes, self._decompress)

    def call_ended(self) -> None:
        """Wake `stop` when no call runs any more."""
        idle = self._idle
        if idle is not None and not idle.done() and not any(connection.streams for connection in self.connections):
            idle.set_result(None)

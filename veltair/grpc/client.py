"""A gRPC client for unary calls: what a load generator needs, in a third of the CPU time of grpcio's client."""

from __future__ import annotations

import asyncio
from collections import deque
from urllib.parse import unquote

import grpc

from veltair.grpc.http2 import hpack
from veltair.grpc.http2.frames import CANCEL, DATA, HEADERS, REFUSED_STREAM
from veltair.grpc.http2.hpack import Field
from veltair.grpc.http2.stream import Stream
from veltair.grpc.transport import AsyncioConnection

MAX_RESPONSE_BYTES = (1 << 31) - 1  # protobuf has no larger message
_STATUS_NAMES = {str(status.value[0]): status.name for status in grpc.StatusCode}


class CallLostError(Exception):
    """The server has not answered: the connection, or what came over it, is broken."""


class UnprocessedError(CallLostError):
    """The server has not looked at the call, which may be repeated (RFC 9113, section 8.7)."""


class StatusError(Exception):
    """The server answered with a status other than OK.

    >>> error = StatusError("UNAVAILABLE", "queue full")
    >>> error.status, str(error)
    ('UNAVAILABLE', 'UNAVAILABLE queue full')
    """

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class ClientCall(Stream):
    """A unary call. `response` becomes the message, or raises StatusError or CallLostError.

    ::

        call = ClientCall()
        connection.open_stream(call)
        message = await call.response  # once its headers and its request are sent
    """

    def __init__(self) -> None:
        super().__init__(MAX_RESPONSE_BYTES)
        self.response: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._data = memoryview(b"")
        self._fields: dict[str, str] = {}

    def headers_received(self, fields: list[Field]) -> None:
        self._fields.update(fields)

    def message_received(self, data: memoryview, *, compressed: bool) -> None:
        self._data = data

    def message_too_large(self, size: int) -> None:
        self._fail(CallLostError(f"an answer of {size} bytes was announced"))
        self.reset(CANCEL)

    def end_received(self) -> None:
        if self.response.done():
            return
        status = _STATUS_NAMES.get(self._fields.get("grpc-status", ""))
        if status == "OK":
            self.response.set_result(self._data)
        elif status is None:
            self._fail(CallLostError(f"HTTP status {self._fields.get(':status')}, no status of gRPC"))
        else:
            text = unquote(self._fields.get("grpc-message", ""))
            self._fail(StatusError(status, " ".join(text.split())))

    def aborted(self, code: int | None) -> None:
        what = "the connection was lost" if code is None else f"the call was reset with code {code}"
        self._fail(UnprocessedError(what) if code == REFUSED_STREAM else CallLostError(what))

    def _fail(self, error: Exception) -> None:
        if not self.response.done():
            self.response.set_exception(error)


class ServerConnection(AsyncioConnection):
    """The client's end of a connection to a server. Calls beyond the server's limit of streams wait for their turn.

    ::

        connection = await GrpcChannel("127.0.0.1", 8001).connect()
        response = await connection.call(head, message_prefix(0))  # an empty request
    """

    def __init__(self) -> None:
        super().__init__()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def settings_received(self) -> None:
        if not self.ready.done():
            self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("it speaks no HTTP/2"))
        while self._waiting:
            self._wake_next()

    def drop(self, stream: Stream) -> None:
        super().drop(stream)
        self._wake_next()

    async def call(self, head: bytes, request: bytes) -> memoryview:
        """Make a unary call and return the response message.

        Args:
            head: from `encode_request_head`.
            request: the message behind its prefix (`http2.frames.message_prefix`).

        Raises StatusError, CallLostError.
        """
        while True:
            while len(self.streams) >= self.max_streams:
                await self._wait_for_an_end()
            alone = not self.streams
            try:
                return await self._call_once(head, request)
            except UnprocessedError:  # a server counts a call as open for a moment after its end has left
                if alone:
                    raise
                if self.streams:
                    await self._wait_for_an_end()

    async def _call_once(self, head: bytes, request: bytes) -> memoryview:
        call = ClientCall()
        self.open_stream(call)
        call.queue(HEADERS, head)
        call.send(DATA, request, end=True)
        try:
            return await call.response
        finally:
            call.reset(CANCEL)  # no effect on a call that has ended

    async def _wait_for_an_end(self) -> None:
        """Wait until another call has ended. Raises CallLostError."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn
        if self.leaving:
            raise CallLostError("the server takes no more calls on this connection")

    def _wake_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its caller has given up
                turn.set_result(None)
                return


class GrpcChannel:
    """One connection to a server, made again after it was lost.

    ::

        channel = GrpcChannel("127.0.0.1", 8001)
        head = encode_request_head("127.0.0.1:8001", "/inference.GRPCInferenceService/ServerLive")
        response = await (await channel.connect()).call(head, message_prefix(0))
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._connection: ServerConnection | None = None
        self._connecting = asyncio.Lock()

    async def connect(self) -> ServerConnection:
        """The open connection, or a new one. Raises OSError."""
        if self._connection is None or self._connection.leaving:
            async with self._connecting:
                if self._connection is None or self._connection.leaving:
                    loop = asyncio.get_running_loop()
                    _, connection = await loop.create_connection(ServerConnection, *self._address)
                    await connection.ready
                    self._connection = connection
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.transport.close()


def encode_request_head(authority: str, path: str) -> bytes:
    """The header block of a call, the same for every call of one method.

    >>> hpack.Decoder().decode(encode_request_head("localhost:8001", "/a.B/C"))[2]
    (':path', '/a.B/C')
    """
    return hpack.encode(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
    )

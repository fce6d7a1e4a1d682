"""A client of the Open Inference Protocol v2 over HTTP/1.1, with the calls that a load generator needs.

Tensors are binary in both directions. Of a response to an infer request, the status and the size of the body are read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any
from urllib.parse import quote

from veltair.address import join_address
from veltair.errors import ConfigError
from veltair.loadgen.client import (
    CallSettings,
    ModelMetadata,
    Outcome,
    Payload,
    Response,
    SharedTensor,
    TensorMetadata,
)
from veltair.loadgen.model_config import build_metadata
from veltair.loadgen.payloads import encode_tensor

MAX_HEAD_BYTES = 65_536
MAX_ERROR = 300  # characters of an error that are kept
REFUSALS = (503, 504)


class BrokenResponseError(Exception):
    """The peer did not speak HTTP, or closed the connection in the middle of a response."""


class StaleConnectionError(BrokenResponseError):
    """Closed before the first byte of a response: normal for a kept-alive connection that was idle."""


def parse_head(head: bytes) -> tuple[int, int, bool]:
    """Status, body length in bytes, and whether the connection stays open. Raises BrokenResponseError.

    >>> parse_head(b"HTTP/1.1 200 OK\\r\\nContent-Length: 12")
    (200, 12, True)
    """
    status_line, *lines = head.split(b"\r\n")
    parts = status_line.split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or len(parts[1]) != 3 or not parts[1].isdigit():
        raise BrokenResponseError(f"not an HTTP status line: {status_line[:60]!r}")
    status = int(parts[1])
    length = 0 if status in (204, 304) else None
    stays = parts[0] == b"HTTP/1.1"
    for line in lines:
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-length":
                if not value.strip().isdigit():
                    raise BrokenResponseError(f"content-length: {value[:60]!r}")
                length = int(value)
            case b"connection":
                stays = stays and value.strip().lower() != b"close"
    if length is None:
        raise BrokenResponseError("an answer without content-length")
    return status, length, stays


class HttpConnection(asyncio.Protocol):
    """A connection for one exchange at a time; `usable` until the peer or a broken response ends it."""

    def __init__(self) -> None:
        self.usable = False
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[tuple[int, bytes]] | None = None
        self._keep_body = False
        self._head, self._body = bytearray(), bytearray()
        self._status = 0
        self._left: int | None = None  # body bytes that are missing; None: the head is incomplete
        self._stays = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass of asyncio.Transport
        self.usable = True

    def connection_lost(self, error: Exception | None) -> None:
        fresh = self._left is None and not self._head
        what = "connection closed before an answer" if fresh else "connection closed in the middle of an answer"
        self._fail(StaleConnectionError(what) if fresh else BrokenResponseError(what))

    @property
    def peer(self) -> tuple[str, int]:
        """The numeric address, and the port. Raises BrokenResponseError before it is connected."""
        if self._transport is None:
            raise BrokenResponseError("not connected")
        host, port = self._transport.get_extra_info("peername")[:2]
        return host, port

    def abort(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def exchange(self, request: bytes, *, keep_body: bool = False) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request; status and body of the response. The body of a 200 is dropped unless `keep_body`."""
        self._response = asyncio.get_running_loop().create_future()
        self._keep_body = keep_body
        self._head, self._body, self._left = bytearray(), bytearray(), None
        if self._transport is None or not self.usable:
            self._fail(StaleConnectionError("connection closed before an answer"))
        else:
            self._transport.write(request)
        return self._response

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._response.done():
            self._fail(BrokenResponseError("bytes that nobody asked for"))
            return
        if self._left is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if len(self._head) > MAX_HEAD_BYTES or not self._head.startswith(b"HTTP/"[: len(self._head)]):
                    self._fail(BrokenResponseError(f"not HTTP: {bytes(self._head[:60])!r}"))
                return
            try:
                self._status, self._left, self._stays = parse_head(bytes(self._head[:end]))
            except BrokenResponseError as error:
                self._fail(error)
                return
            data = bytes(self._head[end + 4 :])
        self._left -= len(data)
        if self._keep_body or (self._status != 200 and len(self._body) < MAX_HEAD_BYTES):
            self._body += data
        if self._left < 0:
            self._fail(BrokenResponseError("more bytes than content-length"))
        elif self._left == 0:
            if not self._stays:
                self.abort()
            self._response.set_result((self._status, bytes(self._body)))

    def _fail(self, error: BrokenResponseError) -> None:
        self.abort()
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)


class HttpClient:
    """Sends infer requests over keep-alive connections, one more whenever all are busy.

    ::

        client = HttpClient("127.0.0.1", 8000, timeout_s=5)
        await client.open(connections=8)
        meta = await client.describe("resnet50")
        response = await client.send(client.encode(meta, payload))
    """

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._host, self._port, self._timeout_s = host, port, timeout_s
        self._authority = join_address(host, port)
        self._connections, self._peer = 0, (host, port)
        self._idle: list[HttpConnection] = []  # the last used one on top: the server may close the others

    async def open(self, connections: int) -> None:
        """Make the first connections. Raises ConfigError when nobody listens."""
        try:
            async with asyncio.timeout(self._timeout_s):
                self._idle += [await self._connect() for _ in range(connections)]
        except OSError as error:  # TimeoutError is one
            raise ConfigError(
                f"load.target: cannot reach http://{self._authority}: {error.strerror or str(error) or 'timeout'}"
            ) from None
        self._connections, self._peer = connections, self._idle[-1].peer

    @property
    def call_settings(self) -> CallSettings:
        return CallSettings("http", *self._peer, self._connections, self._timeout_s)

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    async def describe(self, model: str) -> ModelMetadata:
        path = f"/v2/models/{quote(model, safe='')}"
        status, meta = await self._call("GET", path)
        if status != 200:
            raise ConfigError(f"model `{model}`: the server answered {status} {error_text(meta)}")
        _, config = await self._call("GET", f"{path}/config")
        try:
            inputs = [
                TensorMetadata(str(i["name"]), str(i["datatype"]), tuple(int(n) for n in i["shape"]))
                for i in json.loads(meta)["inputs"]
            ]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"model `{model}`: the server's metadata is not that of the v2 protocol") from None
        try:
            entries = json.loads(config)["parameters"].items()
            parameters = {str(key): str(entry["string_value"]) for key, entry in entries}
        except (ValueError, KeyError, TypeError, AttributeError):  # a server without config
            parameters = {}
        return build_metadata(model, inputs, parameters)

    async def register(self, region: str, key: str, size_bytes: int) -> None:
        path = f"/v2/systemsharedmemory/region/{quote(region, safe='')}/register"
        status, body = await self._call("POST", path, json.dumps({"key": key, "byte_size": size_bytes}).encode())
        if status != 200:
            raise ConfigError(f"load.shared_memory: the server answered {status} {error_text(body)}")

    async def unregister(self, region: str) -> None:
        with contextlib.suppress(ConfigError):
            await self._call("POST", f"/v2/systemsharedmemory/region/{quote(region, safe='')}/unregister")

    def encode(self, meta: ModelMetadata, payload: Payload) -> bytes:
        inputs, buffers = [], []
        for spec in meta.inputs:
            values = payload[spec.name]
            if isinstance(values, SharedTensor):
                parameters = values.parameters
            else:
                buffers.append(encode_tensor(values))
                parameters = {"binary_data_size": len(buffers[-1])}
            entry = {"name": spec.name, "datatype": spec.datatype, "shape": values.shape, "parameters": parameters}
            inputs.append(entry)
        header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        length = len(header) + sum(map(len, buffers))
        head = (
            f"POST /v2/models/{quote(meta.name, safe='')}/infer HTTP/1.1\r\nHost: {self._authority}\r\n"
            f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(header)}\r\n"
            f"Content-Length: {length}\r\n\r\n"
        )
        return b"".join([head.encode(), header, *buffers])

    async def send(self, request: bytes, tenant: int = 0) -> Response:
        """Whoever `tenant` is: a connection has one query at a time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                status, body = await self._exchange(request)
        except TimeoutError:
            return Response(Outcome.ERROR, f"no answer within {self._timeout_s:g} s")
        except (OSError, BrokenResponseError) as error:
            return Response(Outcome.ERROR, str(error) or type(error).__name__)
        if status == 200:
            return Response(Outcome.OK)
        outcome = Outcome.REFUSED if status in REFUSALS else Outcome.ERROR
        return Response(outcome, f"{status} {error_text(body)}")

    async def _call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._authority}\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(head.encode() + body, keep_body=True)
        except (OSError, BrokenResponseError) as error:
            raise ConfigError(f"http://{self._authority}{path}: {str(error) or 'no answer'}") from None

    async def _exchange(self, request: bytes, *, keep_body: bool = False) -> tuple[int, bytes]:
        connection = self._take_idle()
        fresh = connection is None
        connection = connection or await self._connect()
        try:
            try:
                response = await connection.exchange(request, keep_body=keep_body)
            except StaleConnectionError:
                if fresh:
                    raise
                # The server closed it as idle while the request was on its way: the query is sent again.
                connection = await self._connect()
                response = await connection.exchange(request, keep_body=keep_body)
        except BaseException:
            connection.abort()  # its late response must not be taken for the next query's
            raise
        if connection.usable:
            self._idle.append(connection)
        return response

    def _take_idle(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(HttpConnection, self._host, self._port)
        return connection


def error_text(body: bytes) -> str:
    """The `error` of a body in the protocol's form for errors, or the start of another body."""
    try:
        document: Any = json.loads(body)
        text = str(document["error"])
    except (ValueError, KeyError, TypeError):
        text = body[:MAX_ERROR].decode(errors="replace")
    return " ".join(text.split())[:MAX_ERROR]

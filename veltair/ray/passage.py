"""Requests on their way from a replica to the daemon of its machine, and answers on their way back.

What a message says is the daemon's business: bytes go on as they are, with the metadata and headers of their client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import cycle
from typing import Any, NamedTuple, Protocol, TypeAlias

import aiohttp
import grpc
from starlette.responses import Response, StreamingResponse
from yarl import URL

from veltair.ray.servicer import SERVICE

CHANNELS = 4  # connections to the daemon, which gives each at most a quarter of its memory for requests
WHOLE_BYTES = 1 << 26  # a longer answer, or one without a length, is passed on piece by piece
GONE = "the daemon of this machine does not answer; try again"
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to an address share a connection
)
# Of one connection, or set again for the next one.
_OWN_METADATA = {"user-agent", "te", "content-type", "application", "multiplexed_model_id", "session_id"}
_OWN_HEADERS = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"),
    *("upgrade", "host", "content-length"),
}

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
Headers: TypeAlias = Sequence[tuple[str, str]]


class CallContext(Protocol):
    """What Ray gives of a call over gRPC: `ray.serve.grpc_util.RayServegRPCContext`."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]: ...

    def set_code(self, code: Any) -> None: ...

    def set_details(self, details: str) -> None: ...


def client_metadata(context: CallContext) -> Metadata:
    """The metadata that its client has sent along."""
    return [
        (key, value)
        for key, value in context.invocation_metadata()
        if key not in _OWN_METADATA and not key.startswith(("grpc-", ":"))
    ]


class EncodedMessage:
    """A message that is bytes already, where Ray wants one of protobuf's.

    >>> EncodedMessage(b"ab").SerializeToString()
    b'ab'
    """

    __slots__ = ("_encoded",)

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded

    def SerializeToString(self) -> bytes:  # noqa: N802  protobuf's name
        return self._encoded


class GrpcAnswer(NamedTuple):
    """How a call ended: `GrpcAnswer("NOT_FOUND", "unknown model 'm'", b"")`."""

    code: str  # a name of grpc.StatusCode
    details: str
    message: bytes  # empty unless the code is OK

    def tell(self, context: CallContext) -> EncodedMessage:
        """The answer as Ray passes it on."""
        if self.code != "OK":
            context.set_code(grpc.StatusCode[self.code])
            context.set_details(self.details)
        return EncodedMessage(self.message)


class GrpcPassage:
    """Calls of the Open Inference Protocol to one daemon; made in the event loop that uses it.

    ::

        passage = GrpcPassage("127.0.0.1:8001")
        answer = await passage.call("ModelInfer", request, client_metadata(context))
    """

    def __init__(self, address: str) -> None:
        self._channels = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(CHANNELS)]
        self._next = cycle(self._channels)

    async def call(self, method: str, request: bytes, metadata: Metadata) -> GrpcAnswer:
        """The daemon's answer, whatever its status."""
        ask: Any = next(self._next).unary_unary(f"/{SERVICE}/{method}")
        try:
            return GrpcAnswer("OK", "", await ask(request, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            return GrpcAnswer(error.code().name, _details(error), b"")

    async def stream(
        self, method: str, requests: AsyncIterator[bytes], context: CallContext
    ) -> AsyncIterator[EncodedMessage]:
        """The same for a stream in both directions. Raises AioRpcError, with its status set in `context`."""
        ask: Any = next(self._next).stream_stream(f"/{SERVICE}/{method}")
        try:
            async for message in ask(requests, metadata=client_metadata(context)):
                yield EncodedMessage(message)
        except grpc.aio.AioRpcError as error:
            context.set_code(error.code())
            context.set_details(_details(error))
            raise

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


def _details(error: grpc.aio.AioRpcError) -> str:
    """The daemon's words; where it could not be reached, ours, which name no address."""
    lost = error.code() is grpc.StatusCode.UNAVAILABLE and "addr" in (error.details() or "")
    return GONE if lost else error.details() or ""


class HttpAnswer(NamedTuple):
    """`HttpAnswer(200, [("Content-Type", "application/json")], b"{}")`."""

    status: int
    headers: Headers
    body: bytes

    def response(self) -> Response:
        return _with_headers(Response(self.body, self.status), self.headers)


class HttpPassage:
    """Requests over HTTP to one daemon; made in the event loop that uses it.

    ::

        passage = HttpPassage("127.0.0.1:8000")
        answer = await passage.ask("GET", b"/v2/health/ready", [], b"")
    """

    def __init__(self, address: str) -> None:
        self._base = f"http://{address}"
        connector = aiohttp.TCPConnector(limit=0)  # the daemon bounds them
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
        )

    async def forward(self, method: str, target: bytes, headers: Headers, body: bytes) -> Response:
        """The daemon's answer, whatever its status; a long one comes piece by piece."""
        try:
            answer = await self._request(method, target, headers, body)
            if answer.content_length is None or answer.content_length > WHOLE_BYTES:
                return _with_headers(StreamingResponse(_pieces(answer), answer.status), list(answer.headers.items()))
            return (await _whole(answer)).response()
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            return unavailable().response()

    async def ask(self, method: str, target: bytes, headers: Headers, body: bytes) -> HttpAnswer:
        """The same, as a whole."""
        try:
            return await _whole(await self._request(method, target, headers, body))
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            return unavailable()

    async def page(self, path: str, timeout_s: float) -> tuple[int, str]:
        """Status and text of a GET. Raises aiohttp.ClientError or TimeoutError."""
        async with self._session.get(f"{self._base}{path}", timeout=aiohttp.ClientTimeout(total=timeout_s)) as answer:
            return answer.status, await answer.text()

    async def close(self) -> None:
        await self._session.close()

    async def _request(self, method: str, target: bytes, headers: Headers, body: bytes) -> aiohttp.ClientResponse:
        return await self._session.request(
            method,
            URL(f"{self._base}{target.decode('latin-1')}", encoded=True),
            headers=[(name, value) for name, value in headers if name.lower() not in _OWN_HEADERS],
            data=body or None,
            allow_redirects=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        )


def unavailable() -> HttpAnswer:
    """The answer for a machine whose daemon is gone."""
    return HttpAnswer(
        503, [("Content-Type", "application/json"), ("Retry-After", "1")], b'{"error":"%s"}' % GONE.encode()
    )


async def _whole(answer: aiohttp.ClientResponse) -> HttpAnswer:
    async with answer:
        return HttpAnswer(answer.status, list(answer.headers.items()), await answer.read())


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with answer:
        async for piece in answer.content.iter_any():
            yield piece


def _with_headers(response: Response, headers: Headers) -> Response:
    for name, value in headers:
        if name.lower() not in _OWN_HEADERS:
            response.headers.append(name, value)
    return response

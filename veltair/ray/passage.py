"""Requests on their way from Ray's proxies to the daemon of this machine, and answers on their way back.

What a message says is the daemon's business: bytes go on as they are, with the metadata and headers of their client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import cycle
from typing import Any, Protocol

import aiohttp
import grpc
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from yarl import URL

from veltair.ray.servicer import SERVICE

CHANNELS = 4  # connections to the daemon, which gives each at most a quarter of its memory for requests
WHOLE_BYTES = 1 << 26  # a longer answer, or one without a length, is passed on piece by piece
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to an address share a connection
)
# Of one connection, or set anew for the next one.
_OWN_METADATA = {"user-agent", "te", "content-type", "application", "multiplexed_model_id", "session_id"}
_OWN_HEADERS = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"),
    *("upgrade", "host", "content-length"),
}


class CallContext(Protocol):
    """What Ray gives of a call over gRPC: `ray.serve.grpc_util.RayServegRPCContext`."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]: ...

    def set_code(self, code: Any) -> None: ...

    def set_details(self, details: str) -> None: ...


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


class GrpcPassage:
    """Calls of the Open Inference Protocol to one daemon; made in the event loop that uses it.

    ::

        passage = GrpcPassage("127.0.0.1:8001")
        answer = await passage.call("ModelInfer", request, context)
    """

    def __init__(self, address: str) -> None:
        self._channels = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(CHANNELS)]
        self._next = cycle(self._channels)

    async def call(self, method: str, request: bytes, context: CallContext) -> EncodedMessage:
        """The daemon's answer. Where it refuses, its status is set in `context` and the message is empty."""
        ask = next(self._next).unary_unary(f"/{SERVICE}/{method}")
        try:
            return EncodedMessage(await ask(request, metadata=_metadata(context)))
        except grpc.aio.AioRpcError as error:
            context.set_code(error.code())
            context.set_details(error.details() or "")
            return EncodedMessage(b"")

    async def stream(
        self, method: str, requests: AsyncIterator[bytes], context: CallContext
    ) -> AsyncIterator[EncodedMessage]:
        """The same for a stream in both directions. Raises AioRpcError, with its status set in `context`."""
        ask = next(self._next).stream_stream(f"/{SERVICE}/{method}")
        try:
            async for message in ask(requests, metadata=_metadata(context)):
                yield EncodedMessage(message)
        except grpc.aio.AioRpcError as error:
            context.set_code(error.code())
            context.set_details(error.details() or "")
            raise

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


def _metadata(context: CallContext) -> Sequence[tuple[str, str | bytes]]:
    return [
        (key, value)
        for key, value in context.invocation_metadata()
        if key not in _OWN_METADATA and not key.startswith(("grpc-", ":"))
    ]


class HttpPassage:
    """Requests over HTTP to one daemon; made in the event loop that uses it.

    ::

        passage = HttpPassage("127.0.0.1:8000")
        response = await passage.forward(request)
    """

    def __init__(self, address: str, unavailable: Callable[[], Response]) -> None:
        """`unavailable`: the answer where the daemon cannot be reached."""
        self._base, self._unavailable = f"http://{address}", unavailable
        connector = aiohttp.TCPConnector(limit=0)  # the daemon bounds them
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
        )

    async def forward(self, request: Request) -> Response:
        """The daemon's answer, whatever its status."""
        scope = request.scope
        path = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string", b"")
        url = URL(f"{self._base}{(path + b'?' + query if query else path).decode('latin-1')}", encoded=True)
        headers = [(name, value) for name, value in request.headers.items() if name not in _OWN_HEADERS]
        body = await request.body()
        try:
            answer = await self._session.request(
                request.method,
                url,
                headers=headers,
                data=body or None,
                allow_redirects=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            )
            length = answer.content_length
            if length is not None and length <= WHOLE_BYTES:
                async with answer:
                    return _with_headers(Response(await answer.read(), answer.status), answer)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            return self._unavailable()
        return _with_headers(StreamingResponse(_pieces(answer), answer.status), answer)

    async def status(self, path: str, timeout_s: float) -> int:
        """The status of a GET. Raises aiohttp.ClientError or TimeoutError."""
        async with self._session.get(f"{self._base}{path}", timeout=aiohttp.ClientTimeout(total=timeout_s)) as answer:
            return answer.status

    async def close(self) -> None:
        await self._session.close()


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with answer:
        async for piece in answer.content.iter_any():
            yield piece


def _with_headers(response: Response, answer: aiohttp.ClientResponse) -> Response:
    for name, value in answer.headers.items():
        if name.lower() not in _OWN_HEADERS:
            response.headers.append(name, value)
    return response

"""One call to a gRPC server, and the context that its method gets."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError

from veltair.errors import QueryError, RefusalReason, RequestError, quoted
from veltair.grpc.http2 import hpack
from veltair.grpc.http2.frames import DATA, HEADERS, message_prefix
from veltair.grpc.http2.hpack import Field
from veltair.grpc.http2.stream import Stream

ENCODINGS = "identity,gzip,deflate"  # of requests
MAX_DETAIL = 2048  # characters of a status message
READ_AHEAD = 2  # requests of one stream that are read before the method takes the first
NOT_A_MESSAGE = "the request is no message of its type"
_JOINED_BYTES = 1 << 16  # up to which a message is copied behind its prefix

# Messages of one kind are known. gRPC-Web is another protocol, whose pages would not understand the answer.
_GRPC = re.compile(r"application/grpc(?:[+;].*)?")
_OK_FIELDS = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-accept-encoding", ENCODINGS)]
ANSWER_HEAD = hpack.encode(_OK_FIELDS)
ANSWER_TRAILERS = hpack.encode([("grpc-status", "0")])
_NEVER_NS = 1 << 62  # the latest deadline: later ones have no room in messages
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}

# (body, encoding, largest size) -> the decompressed body; raises RequestError or QueryError
Decompress: TypeAlias = Callable[[bytes, str, int], bytes | memoryview]

_log = logging.getLogger(__name__)


class Method(NamedTuple):
    """A method of a service.

    ::

        Method(servicer.ModelInfer, parse_request, client_streaming=False, server_streaming=False, is_generator=False)
    """

    handler: Callable[[Any, Any], Any]  # (request or iterator of them, context), a coroutine or an async generator
    parse: Callable[[memoryview], Any]
    client_streaming: bool
    server_streaming: bool
    is_generator: bool  # the handler is an async generator


class _Packed(NamedTuple):
    """A message that came compressed. A small one may be large inside: it is unpacked in a thread, on its turn."""

    data: bytes


class AbortError(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class ServerCall(Stream):
    """One call. It is the context of its method, and of a streaming method the iterator of the requests.

    ::

        async def ModelInfer(self, request, context: ServerCall):
            seconds = context.time_remaining()

    Args:
        methods: by path, such as "/inference.GRPCInferenceService/ModelInfer".
        max_request_bytes: largest request, compressed or not.
        decompress: for requests that come compressed.
    """

    def __init__(self, methods: Mapping[str, Method], max_request_bytes: int, decompress: Decompress) -> None:
        super().__init__(max_request_bytes)
        self._methods = methods
        self._decompress = decompress
        self._metadata: list[Field] = []
        self._method: Method | None = None
        self._encoding = ""
        self._deadline_ns: int | None = None
        self._requests: deque[Any] = deque()
        self._next_request: asyncio.Future[None] | None = None  # awaited by the method
        self._drained: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._head_sent = self._all_received = False
        self._trailers: Sequence[Field] = ()

    # The context

    def invocation_metadata(self) -> list[Field]:
        return self._metadata

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None without one."""
        return None if self._deadline_ns is None else max(0, self._deadline_ns - time.monotonic_ns()) / 1e9

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        raise AbortError(code, details)

    def set_trailing_metadata(self, fields: Sequence[Field]) -> None:
        """What a call that ends well sends behind its responses."""
        self._trailers = fields

    async def write(self, message: Any) -> None:
        """Send a response; returns once it and those before it have been handed to the transport."""
        self._queue_response(message)
        if not self.closed:
            self.connection.flush(self)
        if self.unsent:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    @property
    def streams_responses(self) -> bool:
        return self._method is not None and self._method.server_streaming

    # Receiving

    def headers_received(self, fields: list[Field]) -> None:
        if self._metadata:
            return  # trailers mean nothing to a server
        self._metadata = fields
        by_name = dict(fields)
        path = by_name.get(":path", "")
        self._method = self._methods.get(path)
        self._encoding = by_name.get("grpc-encoding", "")
        if by_name.get(":method") != "POST" or not _GRPC.fullmatch(by_name.get("content-type", "")):
            self.send(HEADERS, hpack.encode([(":status", "415")]), end=True)
        elif self._method is None:
            self._finish(grpc.StatusCode.UNIMPLEMENTED, f"no method {quoted(path)}")
        else:
            self._set_deadline(by_name.get("grpc-timeout"))
            if self._method.client_streaming:
                self._start(self._method, self)

    def head_too_long(self) -> None:
        self._finish(grpc.StatusCode.RESOURCE_EXHAUSTED, RefusalReason.HEAD.text)

    def message_received(self, data: memoryview, *, compressed: bool) -> None:
        method = self._method
        if method is None:
            return
        try:
            request = _Packed(bytes(data)) if compressed else method.parse(data)
        except DecodeError:
            self._finish(grpc.StatusCode.INTERNAL, NOT_A_MESSAGE)
        except MemoryError:
            self.out_of_memory()
        else:
            self._requests.append(request)
            self._wake()

    def out_of_memory(self) -> None:
        self._finish(grpc.StatusCode.RESOURCE_EXHAUSTED, RefusalReason.MEMORY.text)

    def message_too_large(self, size: int) -> None:
        allowed = f"{self._max_message_bytes} bytes are allowed"
        self._finish(grpc.StatusCode.RESOURCE_EXHAUSTED, f"a message of {size} bytes; {allowed}")

    def end_received(self) -> None:
        self._all_received = True
        self._wake()
        method = self._method
        if method is not None and not method.client_streaming:
            if len(self._requests) == 1:
                self._start(method, self._requests.popleft())
            else:
                self._finish(grpc.StatusCode.INTERNAL, f"one request was expected, {len(self._requests)} came")

    def aborted(self, code: int | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def wants_more(self) -> bool:
        return len(self._requests) < READ_AHEAD

    def flushed(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # As the iterator of its requests

    def __aiter__(self) -> ServerCall:
        return self

    async def __anext__(self) -> Any:
        while not self._requests:
            if self._all_received:
                raise StopAsyncIteration
            self._next_request = asyncio.get_running_loop().create_future()
            await self._next_request
        request = self._requests.popleft()
        if not self.closed:
            self.extend_window()
        try:
            return await self._unpacked(request)
        except (RequestError, QueryError) as error:
            self._finish(grpc.StatusCode[error.grpc_code], str(error))
        except DecodeError:
            self._finish(grpc.StatusCode.INTERNAL, NOT_A_MESSAGE)
        raise StopAsyncIteration

    async def _unpacked(self, request: Any) -> Any:
        """Raises RequestError, DecodeError."""
        if not isinstance(request, _Packed) or self._method is None:
            return request
        unpacked = asyncio.to_thread(self._decompress, request.data, self._encoding, self._max_message_bytes)
        return self._method.parse(memoryview(await unpacked))

    # Running the method

    def _start(self, method: Method, argument: Any) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(method, argument))

    async def _run(self, method: Method, argument: Any) -> None:
        try:
            argument = await self._unpacked(argument)
            if method.is_generator:
                async for response in method.handler(argument, self):
                    await self.write(response)
            else:
                response = await method.handler(argument, self)
                if not method.server_streaming:
                    self._queue_response(response)
            self._finish(grpc.StatusCode.OK, "")
        except (RequestError, QueryError) as error:
            self._finish(grpc.StatusCode[error.grpc_code], str(error))
        except AbortError as error:
            self._finish(error.code, str(error))
        except DecodeError:
            self._finish(grpc.StatusCode.INTERNAL, NOT_A_MESSAGE)
        except asyncio.CancelledError:
            self._finish(grpc.StatusCode.CANCELLED, "cancelled")
            raise
        except MemoryError:
            self.out_of_memory()
        except Exception:
            _log.exception("a call failed")
            self._finish(grpc.StatusCode.INTERNAL, "internal error")

    def _queue_response(self, message: Any) -> None:
        if not self._head_sent:
            self._head_sent = True
            self.queue(HEADERS, ANSWER_HEAD)
        data = message.SerializeToString(deterministic=True)  # as plans answer
        prefix = message_prefix(len(data))
        if len(data) <= _JOINED_BYTES:
            self.queue(DATA, prefix + data)
        else:
            self.queue(DATA, prefix)
            self.queue(DATA, data)

    def _finish(self, code: grpc.StatusCode, text: str) -> None:
        trailers = ANSWER_TRAILERS + hpack.encode(self._trailers)
        if code is not grpc.StatusCode.OK:
            number, _ = code.value
            detail = quote(text[:MAX_DETAIL], safe=" !#$&'()*+,/:;=?@[]\"<>\\^`{|}")
            head = [] if self._head_sent else [(":status", "200"), ("content-type", "application/grpc")]
            trailers = hpack.encode([*head, ("grpc-status", str(number)), ("grpc-message", detail)])
        self.send(HEADERS, trailers, end=True)

    def _wake(self) -> None:
        if self._next_request is not None and not self._next_request.done():
            self._next_request.set_result(None)

    def _set_deadline(self, timeout: str | None) -> None:
        """Parse `grpc-timeout`: up to eight digits and a unit."""
        if timeout is None:
            return
        digits, unit = timeout[:-1], timeout[-1:]
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 8 and unit in _UNITS_S):
            self._finish(grpc.StatusCode.INTERNAL, f"grpc-timeout {quoted(timeout, 40)}")
            return
        self._deadline_ns = min(time.monotonic_ns() + int(int(digits) * _UNITS_S[unit] * 1e9), _NEVER_NS)

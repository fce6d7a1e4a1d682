"""Reads the body of an HTTP request within its size limit, and decodes it as an inference request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fastapi import Request

from veltair.errors import OverloadedError, RefusalReason, RequestError, TooLargeError, quoted
from veltair.server.protocol.compressed_body import Unpacker
from veltair.server.protocol.http_codec import decode_request
from veltair.server.protocol.infer_request import InferRequest
from veltair.server.protocol.json_parser import INLINE_BYTES, JsonParser
from veltair.server.protocol.repository_request import check_control_body
from veltair.server.protocol.request_bounds import only_value

HEADER_LENGTH = "Inference-Header-Content-Length"


class HttpRequest(NamedTuple):
    """A decoded request with the JSON part of its body as it came; None where that was compressed.

    ::

        received = await read_infer_request(request, parser, limit_bytes, memory)
        response = await service.infer("mlp", "", received.request, arrival_ns=time.monotonic_ns())
    """

    request: InferRequest
    json: bytes | None


class BodyMemory:
    """Bytes of all bodies that are being read; they have a bound together.

    >>> memory = BodyMemory(most_bytes=10)
    >>> with memory.hold() as hold:
    ...     hold(8)
    >>> memory.held_bytes
    0
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.held_bytes = 0

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """A function that counts more bytes until the `with` ends. It raises OverloadedError for too many."""
        own = 0

        def more(size: int) -> None:
            nonlocal own
            if self.held_bytes + size > self._most_bytes:
                raise OverloadedError(RefusalReason.MEMORY)
            self.held_bytes += size
            own += size

        try:
            yield more
        finally:
            self.held_bytes -= own


async def read_body(request: Request, limit_bytes: int, hold: Callable[[int], None] = lambda size: None) -> bytes:
    """`hold` counts the bytes.

    Raises TooLargeError from Content-Length before a byte is read, or as soon as a chunked body passes the limit.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise TooLargeError(f"the body has {declared[:20]} bytes, {limit_bytes} are allowed")
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise TooLargeError(f"the body has more than the allowed {limit_bytes} bytes")
        hold(len(chunk))
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def read_control_body(request: Request, what: str) -> None:
    """Read the body of a load or unload, and check it. Raises RequestError or UnsupportedError; `what` does not happen.

    A body beyond INLINE_BYTES brings a model's files, which have been refused before anybody has read them.
    """
    try:
        body = await read_body(request, INLINE_BYTES)
    except TooLargeError as error:
        raise TooLargeError(f"{error}: models come from their folders alone; {what}") from None
    check_control_body(body, what)


async def read_infer_request(
    request: Request, parser: JsonParser, limit_bytes: int, memory: BodyMemory, unpacker: Unpacker
) -> HttpRequest:
    """Read, unpack and decode a body. Raises RequestError, or OverloadedError for want of memory.

    `limit_bytes` bounds the body as sent and unpacked, `memory` and `unpacker` all of them together. `parser` parses
    JSON above `INLINE_BYTES`.
    """
    try:
        with memory.hold() as hold:
            body = await read_body(request, limit_bytes, hold)
            coding = request.headers.get("content-encoding", "")
            if not coding:
                return await _decode(request, body, parser)
            plain = await asyncio.to_thread(unpacker.unpack, body, coding, limit_bytes)  # without the interpreter lock
            return await _decode(request, plain, parser)
    except MemoryError:
        raise OverloadedError(RefusalReason.MEMORY) from None


async def _decode(request: Request, body: bytes | memoryview, parser: JsonParser) -> HttpRequest:
    length = only_value(request.headers.getlist(HEADER_LENGTH), HEADER_LENGTH)
    if length and not (length.isascii() and length.isdecimal() and len(length) < 20):
        raise RequestError(f"{HEADER_LENGTH} is a count of bytes, got {quoted(length, 40)}")
    header_bytes = int(length) if length else None
    if INLINE_BYTES < (len(body) if header_bytes is None else header_bytes) <= len(body):
        decoded = await parser.parse(body, header_bytes)
    else:
        decoded = decode_request(body, header_bytes)
    return HttpRequest(decoded, body[:header_bytes] if isinstance(body, bytes) else None)

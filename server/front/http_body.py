"""Reads the body of an HTTP request within its size limit, and decodes it as an inference request."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from fastapi import Request

from veltair.errors import RequestError, TooLargeError
from veltair.server.protocol.compressed_body import inflate
from veltair.server.protocol.http_codec import decode_request
from veltair.server.protocol.infer_request import InferRequest
from veltair.server.protocol.json_parser import INLINE_BYTES, JsonParser

HEADER_LENGTH = "Inference-Header-Content-Length"


class HttpRequest(NamedTuple):
    """A decoded request with the JSON part of its body as it came; None where that was compressed.

    ::

        received = await read_infer_request(request, parser, limit_bytes)
        response = await service.infer("mlp", "", received.request, arrival_ns=time.monotonic_ns())
    """

    request: InferRequest
    json: bytes | None


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Raises TooLargeError from Content-Length before a byte is read, or as soon as a chunked body passes the limit."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise TooLargeError(f"the body has {declared[:20]} bytes, {limit_bytes} are allowed")
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise TooLargeError(f"the body has more than the allowed {limit_bytes} bytes")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def read_infer_request(request: Request, parser: JsonParser, limit_bytes: int) -> HttpRequest:
    """Read, unpack and decode a body. Raises RequestError.

    `limit_bytes` bounds the body as sent and unpacked. `parser` parses JSON above `INLINE_BYTES`.
    """
    body = await read_body(request, limit_bytes)
    coding = request.headers.get("content-encoding", "")
    if coding:  # unpacking releases the interpreter lock
        body = await asyncio.to_thread(inflate, body, coding, limit_bytes)
    length = request.headers.get(HEADER_LENGTH, "")
    if length and not (length.isascii() and length.isdecimal() and len(length) < 20):
        raise RequestError(f"{HEADER_LENGTH} is a count of bytes, got {length!r:.40}")
    header_bytes = int(length) if length else None
    if INLINE_BYTES < (len(body) if header_bytes is None else header_bytes) <= len(body):
        decoded = await parser.parse(body, header_bytes)
    else:
        decoded = decode_request(body, header_bytes)
    return HttpRequest(decoded, None if coding else body[:header_bytes])

"""Compressed bodies: gzip and deflate (zlib), with a limit on the unpacked size."""

from __future__ import annotations

import zlib
from typing import Any

from veltair.errors import RequestError, TooLargeError, UnsupportedError, quoted

_WINDOW_BITS = {"gzip": 31, "deflate": 15}  # zlib's code for the container
FAST = 1  # compression level of responses: the cores are for the models


def inflate(body: bytes, coding: str, limit_bytes: int) -> bytes:
    """Unpack one complete stream.

    Raises TooLargeError as soon as it passes the limit, RequestError for invalid data, UnsupportedError for a coding
    other than gzip and deflate.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    if coding not in _WINDOW_BITS:
        raise UnsupportedError(f"Content-Encoding {quoted(coding, 40)} is not supported; gzip and deflate are")
    stream: Any = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        plain = bytes(stream.decompress(body, limit_bytes + 1))
    except zlib.error:
        raise RequestError(f"the body is not valid {coding} data") from None
    if len(plain) > limit_bytes:
        raise TooLargeError(f"the body unpacks to more than the allowed {limit_bytes} bytes")
    if not stream.eof or stream.unused_data:
        raise RequestError(f"the {coding} body is {'followed by other data' if stream.eof else 'truncated'}")
    return plain


def deflate(body: bytes, coding: str) -> bytes:
    """Pack a body as gzip or deflate.

    >>> inflate(deflate(b"tensors", "gzip"), "gzip", limit_bytes=100)
    b'tensors'
    """
    stream = zlib.compressobj(FAST, zlib.DEFLATED, _WINDOW_BITS[coding])
    return stream.compress(body) + stream.flush()


def response_coding(accept_encoding: str) -> str | None:
    """The coding of a response; None unless the client accepts exactly one.

    Browsers and HTTP libraries list several by default, without need; tritonclient names the one its user chose.
    """
    coding = accept_encoding.strip().lower()
    return coding if coding in _WINDOW_BITS else None

"""Compressed bodies: gzip and deflate (zlib), with limits on what they unpack to, each and together."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from veltair.errors import OverloadedError, RefusalReason, RequestError, TooLargeError, UnsupportedError, quoted
from veltair.server.protocol.datatypes import Array

_WINDOW_BITS = {"gzip": 31, "deflate": 15}  # zlib's code for the container
_FIRST_PIECE, _LARGEST_PIECE = 1 << 10, 1 << 20  # of a member that follows another; bytes
MOST_MEMBERS = 4096  # of a gzip body; each costs some microseconds, however short
FAST = 1  # compression level of responses: the cores are for the models


class Unpacker:
    """Unpacks bodies, and counts what they hold in memory, whoever holds it, until the last view of it is gone.

    A body of 60 KB may unpack to 64 MB. May be called from any thread.

    >>> Unpacker(most_bytes=100).unpack(deflate(b"tensors", "gzip"), "gzip", limit_bytes=100).tobytes()
    b'tensors'
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: WeakValueDictionary[int, Array] = WeakValueDictionary()
        self._numbers = count()
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        return sum(array.nbytes for array in self._held.values())

    def unpack(self, body: bytes, coding: str, limit_bytes: int) -> memoryview:
        """Raises as `inflate` does, and OverloadedError where all bodies together would hold too much."""
        self._check(0)
        try:
            plain = np.frombuffer(inflate(body, coding, limit_bytes), np.uint8)
        except MemoryError:
            raise OverloadedError(RefusalReason.MEMORY) from None
        with self._lock:
            self._check(plain.nbytes)
            self._held[next(self._numbers)] = plain
        return plain.data  # keeps the array, and so does every view of it

    def _check(self, more_bytes: int) -> None:
        if self.held_bytes + more_bytes > self._most_bytes:
            raise OverloadedError(RefusalReason.MEMORY)


def inflate(body: bytes, coding: str, limit_bytes: int) -> bytes:
    """Unpack one stream of zlib, or all members of a gzip body one after the other (RFC 1952, 2.2).

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
        first = bytes(stream.decompress(body, limit_bytes + 1))
        _check_size(len(first), limit_bytes)
        if not stream.eof:
            raise RequestError(f"the {coding} body is truncated")
        rest = memoryview(body)[len(body) - len(stream.unused_data) :]
        if not rest:
            return first
        if coding != "gzip" or bytes(rest[:2]) != b"\x1f\x8b":
            raise RequestError(f"the {coding} body is followed by other data")
        return b"".join((first, *_further_members(rest, limit_bytes - len(first), limit_bytes)))
    except zlib.error:
        raise RequestError(f"the body is not valid {coding} data") from None


def _check_size(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise TooLargeError(f"the body unpacks to more than the allowed {limit_bytes} bytes")


def _further_members(packed: memoryview, room: int, limit_bytes: int) -> Iterator[bytes]:
    """What gzip members unpack to, `room` bytes at most. Raises RequestError, zlib.error.

    zlib copies what it does not use, so a member gets small pieces at first: the time is linear in the bytes.
    """
    at, members = 0, 1
    while at < len(packed):
        members += 1
        if members > MOST_MEMBERS:
            raise RequestError(f"the gzip body has more than {MOST_MEMBERS} members")
        if bytes(packed[at : at + 2]) not in (b"\x1f\x8b", b"\x1f"):
            raise RequestError("the gzip body is followed by other data")
        stream: Any = zlib.decompressobj(_WINDOW_BITS["gzip"])
        piece = _FIRST_PIECE
        while not stream.eof:
            if at == len(packed):
                raise RequestError("the gzip body is truncated")
            given = packed[at : at + piece]
            plain = stream.decompress(given, room + 1)
            room -= len(plain)
            _check_size(limit_bytes - room, limit_bytes)
            yield plain
            at += len(given) - len(stream.unused_data)
            piece = min(2 * piece, _LARGEST_PIECE)


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

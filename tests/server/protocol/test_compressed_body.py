"""Compressed bodies."""

import gzip
import os
import zlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from veltair.errors import OverloadedError, RefusalReason, RequestError, TooLargeError, UnsupportedError
from veltair.server.protocol import compressed_body
from veltair.server.protocol.compressed_body import MOST_MEMBERS, Unpacker, deflate, inflate, response_coding


@pytest.mark.parametrize("coding", ["gzip", "deflate", " GZIP "])
def test_compressed_bodies(coding: str) -> None:
    plain = b"abc" * 1000
    packed = deflate(plain, coding.strip().lower())
    assert len(packed) < len(plain)
    assert inflate(packed, coding, len(plain)) == plain
    with pytest.raises(TooLargeError, match="2999"):
        inflate(packed, coding, 2999)
    with pytest.raises(RequestError, match="truncated"):
        inflate(packed[:-3], coding, 10_000)
    with pytest.raises(RequestError, match="followed"):
        inflate(packed + b"x", coding, 10_000)
    with pytest.raises(RequestError, match="not valid"):
        inflate(b"\x00" * 64, coding, 10_000)


def test_a_bomb_stops_at_the_limit() -> None:
    bomb = zlib.compress(b"\x00" * (64 << 20))
    with pytest.raises(TooLargeError):
        inflate(bomb, "deflate", 1 << 20)


@example([b"", b""], 1, 40)
@given(st.lists(st.binary(max_size=5000), min_size=1, max_size=8), st.integers(0, 9), st.integers(1, 40))
def test_members_of_gzip_are_one_body(parts: list[bytes], level: int, cut: int) -> None:
    """RFC 1952, section 2.2, as Python's gzip reads it."""
    members = [gzip.compress(part, level) for part in parts]
    packed = b"".join(members)
    plain = gzip.decompress(packed)
    assert inflate(packed, "gzip", len(plain)) == plain == b"".join(parts)
    if plain:
        with pytest.raises(TooLargeError):
            inflate(packed, "gzip", len(plain) - 1)
    begins = [b"".join(members[:count]) for count in range(1, len(members) + 1)]
    whole = {*begins, *[packed + begin for begin in begins]}
    for broken in (packed[:-1], packed[: max(1, len(packed) - cut)], packed + b"\0", packed + packed[:cut]):
        if broken in whole:
            continue
        with pytest.raises(RequestError):
            inflate(broken, "gzip", 2 * len(plain) + 1)


def test_many_members_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib copies what it is given and does not use: it is given little at a time."""
    given_bytes = 0

    class Stream:
        def __init__(self, bits: int) -> None:
            self._stream: Any = decompressobj(bits)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal given_bytes
            given_bytes += len(data)
            return bytes(self._stream.decompress(data, most))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    decompressobj = zlib.decompressobj
    monkeypatch.setattr(compressed_body.zlib, "decompressobj", Stream)
    packed = gzip.compress(b"") * (MOST_MEMBERS - 2) + gzip.compress(large := os.urandom(1 << 22)) + gzip.compress(b"x")
    assert inflate(packed, "gzip", 1 << 23) == large + b"x"
    assert given_bytes < 4 * len(packed)
    with pytest.raises(RequestError, match=f"more than {MOST_MEMBERS} members"):
        inflate(packed + gzip.compress(b""), "gzip", 1 << 23)


def test_a_bomb_of_members_stops_at_the_limit() -> None:
    packed = gzip.compress(bytes(1 << 20))
    with pytest.raises(TooLargeError):
        inflate(packed * 1000, "gzip", 1 << 21)


def test_what_bodies_unpack_to_has_a_bound_together() -> None:
    unpacker, packed = Unpacker(most_bytes=250), gzip.compress(bytes(100))
    first, second = (unpacker.unpack(packed, "gzip", 1000) for _ in range(2))
    with pytest.raises(OverloadedError) as caught:
        unpacker.unpack(packed, "gzip", 1000)
    assert caught.value.reason is RefusalReason.MEMORY and unpacker.held_bytes == 200
    part = first[10:20]  # a tensor of the request
    del first
    assert unpacker.held_bytes == 200
    del part
    assert unpacker.held_bytes == 100
    assert unpacker.unpack(packed, "gzip", 1000) == second == bytes(100)
    with pytest.raises(RequestError):
        unpacker.unpack(b"x", "gzip", 1000)
    assert unpacker.held_bytes == 100


def test_memory_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(compressed_body.zlib, "decompressobj", refuse)
    with pytest.raises(OverloadedError):
        Unpacker(1000).unpack(b"x", "gzip", 1000)


def test_other_codings() -> None:
    assert inflate(b"abc", "identity", 3) == b"abc"
    with pytest.raises(UnsupportedError, match="br"):
        inflate(b"abc", "br", 3)
    assert response_coding("gzip") == "gzip"
    assert response_coding("gzip, deflate, br") is None  # what every library sends, unasked

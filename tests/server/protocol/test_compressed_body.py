"""Compressed bodies."""

import zlib

import pytest

from veltair.errors import RequestError, TooLargeError, UnsupportedError
from veltair.server.protocol.compressed_body import deflate, inflate, response_coding


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


def test_other_codings() -> None:
    assert inflate(b"abc", "identity", 3) == b"abc"
    with pytest.raises(UnsupportedError, match="br"):
        inflate(b"abc", "br", 3)
    assert response_coding("gzip") == "gzip"
    assert response_coding("gzip, deflate, br") is None  # what every library sends, unasked

"""Header blocks, by the examples of RFC 7541 (appendix C) and by what the encoder makes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.grpc.http2.hpack import MAX_HEADER_LIST_BYTES, Decoder, HeaderError, encode

WWW = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]
CUSTOM = [
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
]
PLAIN = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
HUFFMAN = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)


@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN])
def test_requests_of_the_rfc(blocks: tuple[str, ...]) -> None:
    decoder = Decoder()
    found = [decoder.decode(bytes.fromhex(block)) for block in blocks]
    assert found == [WWW, [*WWW, ("cache-control", "no-cache")], CUSTOM]


def test_literals_that_are_not_kept() -> None:
    decoder = Decoder()
    assert decoder.decode(bytes.fromhex("040c2f73616d706c652f70617468")) == [(":path", "/sample/path")]
    assert decoder.decode(bytes.fromhex("100870617373776f726406736563726574")) == [("password", "secret")]
    with pytest.raises(HeaderError, match="index 62"):
        decoder.decode(b"\xbe")


def test_old_fields_leave_the_table() -> None:
    decoder = Decoder()
    for value in ("a" * 3000, "b" * 3000):
        decoder.decode(
            b"\x40\x01x\x7f" + bytes([(len(value) - 127) & 0x7F | 0x80, (len(value) - 127) >> 7]) + value.encode()
        )
    assert decoder.decode(b"\xbe") == [("x", "b" * 3000)]
    with pytest.raises(HeaderError, match="index 63"):
        decoder.decode(b"\xbf")
    decoder.decode(b"\x20")  # a table of no bytes
    with pytest.raises(HeaderError, match="index 62"):
        decoder.decode(b"\xbe")


texts = st.text(st.characters(max_codepoint=255), max_size=300)


@given(st.lists(st.tuples(texts, texts), max_size=9))
def test_what_is_encoded_comes_back(fields: list[tuple[str, str]]) -> None:
    assert Decoder().decode(encode(fields)) == fields


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # no field has index 0
        b"\x41",  # ends within a field
        b"\x41\x05ab",  # ends within a string
        b"\x7f\x80\x80\x80\x80\x80\x01",  # a number that goes on
        b"\x3f\xe2\x1f",  # a table of 4,097 bytes
        b"\x82\x20",  # a table size behind a field
        b"\x00\x81\xff\x00",  # padding of a whole byte
        b"\x00\x81\x00\x00",  # padding of zeros
        b"\x00\x84\xff\xff\xff\xff\x00",  # the end of a string within it
        (b"\x00\x7f\x81\x1f" + b"a" * 4096) * 9,
    ],
)
def test_broken_blocks(block: bytes) -> None:
    with pytest.raises(HeaderError):
        Decoder().decode(block)


@given(st.binary(max_size=200))
def test_any_bytes_give_fields_or_an_error(block: bytes) -> None:
    try:
        fields = Decoder().decode(block)
    except HeaderError:
        return
    assert sum(len(name) + len(value) + 32 for name, value in fields) <= MAX_HEADER_LIST_BYTES

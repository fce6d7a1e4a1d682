"""Header blocks in Python and in C, by the examples of RFC 7541 (appendix C) and by what the encoder makes."""

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_end import NativeDecoder, native_encode

from veltair.grpc.http2.hpack import _LENGTHS, MAX_HEADER_LIST_BYTES, Decoder, Field, HeaderError, encode

AnyDecoder: TypeAlias = type[Decoder] | type[NativeDecoder]
both_decoders = pytest.mark.parametrize("decoder_type", [Decoder, NativeDecoder])

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


@both_decoders
@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN])
def test_requests_of_the_rfc(blocks: tuple[str, ...], decoder_type: AnyDecoder) -> None:
    decoder = decoder_type()
    found = [decoder.decode(bytes.fromhex(block)) for block in blocks]
    assert found == [WWW, [*WWW, ("cache-control", "no-cache")], CUSTOM]


@both_decoders
def test_literals_that_are_not_kept(decoder_type: AnyDecoder) -> None:
    decoder = decoder_type()
    assert decoder.decode(bytes.fromhex("040c2f73616d706c652f70617468")) == [(":path", "/sample/path")]
    assert decoder.decode(bytes.fromhex("100870617373776f726406736563726574")) == [("password", "secret")]
    with pytest.raises(HeaderError):
        decoder.decode(b"\xbe")


@both_decoders
def test_old_fields_leave_the_table(decoder_type: AnyDecoder) -> None:
    decoder = decoder_type()
    for value in ("a" * 3000, "b" * 3000):
        decoder.decode(
            b"\x40\x01x\x7f" + bytes([(len(value) - 127) & 0x7F | 0x80, (len(value) - 127) >> 7]) + value.encode()
        )
    assert decoder.decode(b"\xbe") == [("x", "b" * 3000)]
    with pytest.raises(HeaderError):
        decoder.decode(b"\xbf")
    decoder.decode(b"\x20")  # a table of no bytes
    with pytest.raises(HeaderError):
        decoder.decode(b"\xbe")


texts = st.text(st.characters(max_codepoint=255), max_size=300)


@given(st.lists(st.tuples(texts, texts), max_size=9))
def test_what_is_encoded_comes_back(fields: list[Field]) -> None:
    block = encode(fields)
    assert native_encode(fields) == block
    assert Decoder().decode(block) == NativeDecoder().decode(block) == fields


def huffman_encode(symbols: list[int]) -> bytes:
    """A text in the code of appendix B, padded with ones."""
    codes, code, length = {}, 0, 0
    for size, symbol in sorted((int(digit, 36), symbol) for symbol, digit in enumerate(_LENGTHS)):
        code <<= size - length
        codes[symbol], length = f"{code:0{size}b}", size
        code += 1
    bits = "".join(codes[symbol] for symbol in symbols)
    bits += "1" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


@both_decoders
def test_every_symbol_of_the_huffman_code(decoder_type: AnyDecoder) -> None:
    runs = [list(range(begin, begin + 32)) for begin in range(0, 256, 32)]
    for symbols in [[symbol, 97, symbol] for symbol in range(256)] + runs:
        packed, text = huffman_encode(symbols), bytes(symbols).decode("latin-1")
        assert decoder_type().decode(b"\0\1x" + bytes([0x80 | len(packed)]) + packed) == [("x", text)]


@both_decoders
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
def test_broken_blocks(block: bytes, decoder_type: AnyDecoder) -> None:
    with pytest.raises(HeaderError):
        decoder_type().decode(block)


@both_decoders
def test_names_of_large_fields_cost_only_themselves(decoder_type: AnyDecoder) -> None:
    decoder = decoder_type()
    large = ("x", "a" * 3000)
    assert decoder.decode(b"\x40" + encode([large])[1:]) == [large]
    assert decoder.decode(b"\x0f\x2f\1b" * 400) == [("x", "b")] * 400
    with pytest.raises(HeaderError):
        decoder.decode(b"\xbe" * 6)


def outcome(decoder: Decoder | NativeDecoder, block: bytes) -> list[Field] | None:
    try:
        return decoder.decode(block)
    except HeaderError:
        return None


# Blocks that are nearly right: the encoder's, kept fields, indices of the table, its size, packed texts, any bytes.
parts = st.one_of(
    st.binary(max_size=30),
    st.lists(st.tuples(texts, texts), max_size=3).map(encode),
    st.tuples(texts, texts).map(lambda field: b"\x40" + encode([("", ""), field])[4:]),
    st.integers(0x80, 0xFF).map(lambda index: bytes([index])),
    st.integers(0, 31).map(lambda size: bytes([0x20 | size])),
    st.lists(st.integers(0, 256), max_size=20).map(huffman_encode).map(lambda t: b"\x41" + bytes([0x80 | len(t)]) + t),
)


@given(st.lists(st.lists(parts, max_size=6).map(b"".join), max_size=4))
def test_any_bytes_give_the_same_fields_or_an_error(blocks: list[bytes]) -> None:
    decoder, native = Decoder(), NativeDecoder()
    for block in blocks:
        fields = outcome(decoder, block)
        assert outcome(native, block) == fields
        if fields is None:
            break
        assert sum(len(name) + len(value) + 32 for name, value in fields) <= MAX_HEADER_LIST_BYTES

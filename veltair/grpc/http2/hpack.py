"""Header compression of HTTP/2 (RFC 7541): a complete decoder, and an encoder without a dynamic table.

Header fields are (name, value) pairs of str, one character per byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

Field: TypeAlias = tuple[str, str]

TABLE_BYTES = 4096  # of the decoder's table: the protocol's default
MAX_HEADER_LIST_BYTES = 1 << 14  # of a header list, with 32 added for each field, as the protocol counts
ENDLESS_BYTES = 1 << 18  # of a list that is read for the table's sake alone: a byte of a block may stand for 4 KB
_FIELD_BYTES = 32
_MAX_DIGITS = 4  # of 7 bits in an integer; lengths and indices need two

# RFC 7541, appendix A: the fields 1 … 61, each a name or `name=value`.
_STATIC_TEXT = (
    ":authority;:method=GET;:method=POST;:path=/;:path=/index.html;:scheme=http;:scheme=https;:status=200;:status=204;"
    ":status=206;:status=304;:status=400;:status=404;:status=500;accept-charset;accept-encoding=gzip, deflate;"
    "accept-language;accept-ranges;accept;access-control-allow-origin;age;allow;authorization;cache-control;"
    "content-disposition;content-encoding;content-language;content-length;content-location;content-range;content-type;"
    "cookie;date;etag;expect;expires;from;host;if-match;if-modified-since;if-none-match;if-range;if-unmodified-since;"
    "last-modified;link;location;max-forwards;proxy-authenticate;proxy-authorization;range;referer;refresh;retry-after;"
    "server;set-cookie;strict-transport-security;transfer-encoding;user-agent;vary;via;www-authenticate"
)
_STATIC: tuple[Field, ...] = tuple((f.partition("=")[0], f.partition("=")[2]) for f in _STATIC_TEXT.split(";"))
_STATIC_INDEX = {field: index for index, field in reversed(list(enumerate(_STATIC, 1)))}

# RFC 7541, appendix B: a canonical Huffman code, so that the lengths (base 36, by symbol) define it.
_LENGTHS = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6cad67777777777777777777777878djde6"
    "f56565666577666567655677777fbedskmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmolmnnllmlnmnnkmmmnmmn"
    "qqkjmnmpqqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrqu"
)
_END = 256  # the symbol that may not occur


class HeaderError(Exception):
    """A header block is malformed: nobody knows the table any more."""


class LongListError(HeaderError):
    """A header list is longer than is accepted. The table is as it should be."""


class EndlessListError(HeaderError):
    """It is so long that decoding was given up."""


def _huffman_codes() -> dict[int, int]:
    """Symbol by code; each code has a one in front of its bits."""
    codes, code, length = {}, 0, 0
    for size, symbol in sorted((int(digit, 36), symbol) for symbol, digit in enumerate(_LENGTHS)):
        code <<= size - length
        length = size
        codes[1 << size | code] = symbol
        code += 1
    return codes


_HUFFMAN = _huffman_codes()


class Decoder:
    """Decodes the header blocks of one connection, in their order.

    >>> Decoder().decode(encode([(":status", "200"), ("grpc-status", "0")]))
    [(':status', '200'), ('grpc-status', '0')]
    """

    def __init__(self) -> None:
        self._dynamic: deque[Field] = deque()  # newest first
        self._bytes = 0
        self._max_bytes = TABLE_BYTES

    def decode(self, block: bytes) -> list[Field]:
        """The fields of one complete block. Raises LongListError, and HeaderError for what ends the connection."""
        fields: list[Field] = []
        at = total = 0
        try:
            while at < len(block):
                first = block[at]
                if first & 0x80:
                    index, at = _read_integer(block, at, 0x7F)
                    field = self._field(index)
                elif first & 0xE0 == 0x20:
                    self._max_bytes, at = _read_integer(block, at, 0x1F)
                    if self._max_bytes > TABLE_BYTES or total:
                        raise HeaderError("a table size that is too large or out of place")
                    self._evict()
                    continue
                else:
                    keep = first & 0x40
                    index, at = _read_integer(block, at, 0x3F if keep else 0x0F)
                    name, at = (self._field(index)[0], at) if index else _read_text(block, at)
                    value, at = _read_text(block, at)
                    field = (name, value)
                    if keep:
                        self._dynamic.appendleft(field)
                        self._bytes += _size(field)
                        self._evict()
                fields.append(field)
                total += _size(field)
                if total > ENDLESS_BYTES:
                    raise EndlessListError("a header list that is too large")
        except IndexError:
            raise HeaderError("a header block that ends within a field") from None
        if total > MAX_HEADER_LIST_BYTES:
            raise LongListError(f"more than {MAX_HEADER_LIST_BYTES} bytes of headers")
        return fields

    def _field(self, index: int) -> Field:
        if not 0 < index <= len(_STATIC) + len(self._dynamic):
            raise HeaderError(f"no field has index {index}")
        return _STATIC[index - 1] if index <= len(_STATIC) else self._dynamic[index - len(_STATIC) - 1]

    def _evict(self) -> None:
        while self._bytes > self._max_bytes:
            self._bytes -= _size(self._dynamic.pop())


def _size(field: Field) -> int:
    return len(field[0]) + len(field[1]) + _FIELD_BYTES


def _read_integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """The number that begins in the bits of `mask`, and the offset behind it."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for digit in range(_MAX_DIGITS):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << 7 * digit
        if byte < 0x80:
            return value, at
    raise HeaderError("a number of more than four digits")


def _read_text(block: bytes, at: int) -> tuple[str, int]:
    packed = block[at] & 0x80
    size, at = _read_integer(block, at, 0x7F)
    data = block[at : at + size]
    if len(data) < size:
        raise IndexError
    return (_huffman_decode(data) if packed else data).decode("latin-1"), at + size


def _huffman_decode(data: bytes) -> bytes:
    out, code = bytearray(), 1
    for byte in data:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            symbol = _HUFFMAN.get(code)
            if symbol is not None:
                if symbol == _END:
                    raise HeaderError("a string with the end symbol inside")
                out.append(symbol)
                code = 1
    if code & (code + 1) or code >= 1 << 8:  # padding is ones, fewer than a byte of them
        raise HeaderError("a string that ends within a character")
    return bytes(out)


def encode(fields: Iterable[Field]) -> bytes:
    """A header block that changes no table: fields of the static table by index, others as literals.

    >>> encode([(":status", "200"), ("te", "trailers")]).hex()
    '880002746508747261696c657273'
    """
    block = bytearray()
    for name, value in fields:
        if (index := _STATIC_INDEX.get((name, value))) is not None:
            block.append(0x80 | index)
        else:
            block.append(0)
            for text in (name, value):
                data = text.encode("latin-1")
                block += _encode_length(len(data)) + data
    return bytes(block)


def _encode_length(size: int) -> bytes:
    if size < 0x7F:
        return bytes([size])
    out, size = bytearray([0x7F]), size - 0x7F
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)

"""The frames of HTTP/2 (RFC 9113): kinds, flags, error codes, settings, and the sizes that are accepted here."""

from __future__ import annotations

import struct

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY, ACK = 0x1, 0x4, 0x8, 0x20, 0x1
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0x0, 0x1, 0x3, 0x5, 0x6
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 0x7, 0x8, 0x9, 0xB
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = range(2, 7)
DEFAULT_WINDOW_BYTES, DEFAULT_FRAME_BYTES, LARGEST_WINDOW_BYTES = 65535, 16384, 2**31 - 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA_FRAME_BYTES = 1 << 20  # the largest data frame that the other side may send
CONTROL_BYTES = 1 << 14  # its largest other frame, except for headers; its largest header list
BLOCK_BYTES = 1 << 16  # of a header block: its list may be too large without harm to other streams
REQUEST_WINDOW_BYTES = DEFAULT_WINDOW_BYTES  # of a request: the rest of a message may come once it has begun
ANSWER_WINDOW_BYTES = 1 << 23  # of an answer, ahead of its reader
CONNECTION_WINDOW_BYTES = 1 << 30  # streams bound the memory in use, so this window does not
MAX_STREAMS = 1024
PING_BYTES, PRIORITY_BYTES = 8, 5

FRAME_HEAD = struct.Struct(">BHBBI")  # length in 8 + 16 bits, kind, flags, stream
SETTING, WORD, MESSAGE_PREFIX = struct.Struct(">HI"), struct.Struct(">I"), struct.Struct(">BI")


class ProtocolError(Exception):
    """The other side broke the protocol: the connection ends. `code` is the error code of the GOAWAY frame.

    >>> raise ProtocolError(FRAME_SIZE_ERROR, "a frame of 0 bytes")
    Traceback (most recent call last):
    veltair.grpc.http2.frames.ProtocolError: a frame of 0 bytes
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def frame_head(kind: int, flags: int, stream: int, size: int) -> bytes:
    """The nine bytes in front of a payload of `size` bytes."""
    return FRAME_HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream)


def check_size(payload: bytes, size: int) -> None:
    """Raise ProtocolError for a payload of another size.

    >>> check_size(bytes(7), PING_BYTES)
    Traceback (most recent call last):
    veltair.grpc.http2.frames.ProtocolError: a frame that is too short or too long
    """
    if len(payload) != size:
        raise ProtocolError(FRAME_SIZE_ERROR, "a frame that is too short or too long")


def parse_word(payload: bytes) -> int:
    """The 32-bit number that is the whole payload. Raises ProtocolError for another size."""
    check_size(payload, WORD.size)
    return int.from_bytes(payload, "big")


def message_prefix(size: int) -> bytes:
    """The five bytes that gRPC puts in front of an uncompressed message of `size` bytes.

    >>> message_prefix(258).hex()
    '0000000102'
    """
    return MESSAGE_PREFIX.pack(0, size)

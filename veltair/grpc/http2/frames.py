"""The frames of HTTP/2 (RFC 9113): kinds, flags, error codes, settings, and how much of each is taken here."""

from __future__ import annotations

import struct

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY, ACK = 0x1, 0x4, 0x8, 0x20, 0x1
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR = 0x0, 0x1, 0x3, 0x6
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 0x7, 0x8, 0x9, 0xB
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 5, 6
DEFAULT_WINDOW_BYTES, DEFAULT_FRAME_BYTES, LARGEST_WINDOW_BYTES = 65535, 16384, 2**31 - 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

FRAME_BYTES = 1 << 20  # of data frames that the other side may send
CONTROL_BYTES = 1 << 14  # of its other frames, and of a header block
STREAM_WINDOW_BYTES = 1 << 23  # that it may send ahead of a reader
CONNECTION_WINDOW_BYTES = 1 << 30  # streams bound what is held, so this one does not
MOST_STREAMS = 4096

HEAD = struct.Struct(">BHBBI")  # length in 8 + 16 bits, kind, flags, stream
SETTING, WORD, PREFIX = struct.Struct(">HI"), struct.Struct(">I"), struct.Struct(">BI")


class ProtocolError(Exception):
    """The other side broke the protocol: the connection ends."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def head(kind: int, flags: int, stream: int, size: int) -> bytes:
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream)


def word(payload: bytes) -> int:
    """The number that is all of a payload."""
    if len(payload) != WORD.size:
        raise ProtocolError(FRAME_SIZE_ERROR, "a frame that is too short or too long")
    return int.from_bytes(payload, "big")


def prefix(size: int) -> bytes:
    """What stands in front of a message of that many bytes."""
    return PREFIX.pack(0, size)

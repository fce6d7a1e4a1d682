"""Header blocks of one connection, put together from their frames (RFC 9113, section 4.3)."""

from __future__ import annotations

from veltair.grpc.http2 import frames
from veltair.grpc.http2.frames import BLOCK_BYTES, PROTOCOL_ERROR, ProtocolError
from veltair.grpc.http2.hpack import Decoder, EndlessListError, Field, HeaderError, LongListError


class HeaderBlockReader:
    """Joins a HEADERS frame and its CONTINUATION frames, and decodes them.

    >>> from veltair.grpc.http2.hpack import encode
    >>> reader, block = HeaderBlockReader(), encode([(":status", "200"), ("a", "b")])
    >>> reader.add(frames.HEADERS, frames.END_STREAM, 1, block[:2])
    >>> reader.unfinished_stream
    1
    >>> reader.add(frames.CONTINUATION, frames.END_HEADERS, 1, block[2:])
    ([(':status', '200'), ('a', 'b')], True)
    """

    def __init__(self) -> None:
        self.unfinished_stream: int | None = None  # whose block goes on; no other frame may come before its rest
        self._block = bytearray()
        self._ends_stream = False
        self._decoder = Decoder()

    def add(self, kind: int, flags: int, number: int, payload: bytes) -> tuple[list[Field] | None, bool] | None:
        """The fields, and whether they end the stream, once the block is complete; None before.

        None instead of the fields: they are more than is accepted. Raises ProtocolError for frames out of order, a
        block above BLOCK_BYTES, and one that cannot be decoded.
        """
        if kind == frames.HEADERS:
            skipped = padding = 0
            if flags & frames.PADDED:
                skipped, padding = 1, payload[0] if payload else 0
            if flags & frames.HAS_PRIORITY:
                skipped += frames.PRIORITY_BYTES
            if skipped + padding > len(payload):
                raise ProtocolError(PROTOCOL_ERROR, "a frame with more padding than bytes")
            if not number:
                raise ProtocolError(PROTOCOL_ERROR, "headers of no stream")
            if flags & frames.HAS_PRIORITY:
                check_priority(number, payload[skipped - frames.PRIORITY_BYTES :])
            self._block = bytearray(payload[skipped : len(payload) - padding])
            self.unfinished_stream, self._ends_stream = number, bool(flags & frames.END_STREAM)
        elif self.unfinished_stream is None:
            raise ProtocolError(PROTOCOL_ERROR, "a continuation of nothing")
        else:
            self._block += payload
        if len(self._block) > BLOCK_BYTES:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "a header block that is too large")
        if not flags & frames.END_HEADERS:
            return None
        self.unfinished_stream = None
        try:
            return self._decoder.decode(bytes(self._block)), self._ends_stream
        except LongListError:
            return None, self._ends_stream
        except EndlessListError as error:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, str(error)) from None
        except HeaderError as error:
            raise ProtocolError(frames.COMPRESSION_ERROR, str(error)) from None


def check_priority(number: int, payload: bytes) -> None:
    """Raise ProtocolError for the priority of a stream that depends on itself."""
    if int.from_bytes(payload[:4], "big") & frames.LARGEST_WINDOW_BYTES == number:
        raise ProtocolError(PROTOCOL_ERROR, f"stream {number} depends on itself")

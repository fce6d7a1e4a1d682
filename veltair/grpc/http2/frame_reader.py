"""Incoming bytes of one connection, cut into frames. Large messages are read straight into their own memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from veltair.grpc.http2.frames import (
    CONTINUATION,
    CONTROL_BYTES,
    DATA,
    DATA_FRAME_BYTES,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FRAME_HEAD,
    FRAME_SIZE_ERROR,
    HEADERS,
    PADDED,
    PREFACE,
    PROTOCOL_ERROR,
    ProtocolError,
)
from veltair.grpc.http2.stream import Stream

SCRATCH_BYTES = 1 << 16  # one read; if more than a quarter of it is missing from a message, that is read in place


class Transport(Protocol):
    """The methods of `asyncio.Transport` that a connection calls."""

    def write(self, data: bytes, /) -> None: ...

    def writelines(self, parts: list[bytes | memoryview], /) -> None: ...

    def is_closing(self) -> bool: ...

    def close(self) -> None: ...


class FrameReader(ABC):
    """Reads frames; subclasses decide what they do.

    Method names are those of `asyncio.BufferedProtocol`, so that a transport can call them without a layer between.
    `expects_preface`: the other side is a client, whose bytes begin with `PREFACE`.

    ::

        reader.get_buffer(-1)[: len(data)] = data  # as a transport does
        reader.buffer_updated(len(data))  # calls `accept_data`, `end_of_stream` and `handle_control`
    """

    def __init__(self, *, expects_preface: bool) -> None:
        self.transport: Transport
        self._expects_preface = expects_preface
        self._buffer = bytearray(SCRATCH_BYTES)
        self._scratch = memoryview(self._buffer)
        self._held = 0  # bytes in it
        self._direct: memoryview | None = None  # memory of a message that the next read goes to instead
        self._stream: Stream | None = None  # whose data frame is being read; None: the data is thrown away
        self._left = self._padding = 0  # bytes of that frame that are still to come
        self._ends_stream = False

    @abstractmethod
    def accept_data(self, number: int, size: int) -> Stream | None:
        """A data frame of `size` bytes begins. Returns its stream, None when nobody wants it; raises ProtocolError."""

    @abstractmethod
    def count_glitch(self) -> None:
        """A frame cost more than it brought. Raises ProtocolError when there were too many."""

    @abstractmethod
    def fail_stream(self, stream: Stream) -> None:
        """The other side broke the protocol on one stream, which ends."""

    @abstractmethod
    def end_of_stream(self, stream: Stream) -> None:
        """The last data frame of a stream is complete."""

    @abstractmethod
    def handle_control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """A frame other than data is complete. Raises ProtocolError."""

    @abstractmethod
    def fail(self, error: ProtocolError) -> None:
        """The other side broke the protocol: the connection has to end."""

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch[self._held :] if self._direct is None else self._direct

    def buffer_updated(self, size: int) -> None:
        try:
            if self._direct is not None and self._stream is not None:
                self._left -= size
                self._stream.message_filled(size)
                if not self._left and not self._padding:
                    self._end_data()
            else:
                self._held += size
                self._parse()
        except ProtocolError as error:
            self._held = 0
            self.fail(error)
        self._direct = None
        if self._stream is not None and self._left > SCRATCH_BYTES // 4 and (rest := self._stream.message_rest()):
            self._direct = rest[: self._left]

    def _parse(self) -> None:
        view, at, end = self._scratch, 0, self._held
        if self._expects_preface:
            if not PREFACE.startswith(view[: min(end, len(PREFACE))]):
                raise ProtocolError(PROTOCOL_ERROR, "not HTTP/2")
            if end < len(PREFACE):
                return
            at, self._expects_preface = len(PREFACE), False
        while not self.transport.is_closing():
            if self._left or self._padding:
                at = self._read_data(view, at, end)
                if self._left or self._padding:
                    break
                self._end_data()
            if end - at < FRAME_HEAD.size:
                break
            high, low, kind, flags, number = FRAME_HEAD.unpack_from(view, at)
            size, number = high << 16 | low, number & 0x7FFFFFFF
            begin = at + FRAME_HEAD.size
            if kind == DATA:
                padded = 1 if flags & PADDED else 0
                if size < padded:
                    raise ProtocolError(FRAME_SIZE_ERROR, "a frame that is too short or too long")
                if end - begin < padded:
                    break
                self._begin_data(number, flags, size, view[begin] if padded else None)
                at = begin + padded
                if not self._left and not self._padding:
                    self._end_data()
                continue
            headers = kind in (HEADERS, CONTINUATION)
            if size > (SCRATCH_BYTES - FRAME_HEAD.size if headers else CONTROL_BYTES):
                if headers and size <= DATA_FRAME_BYTES:
                    raise ProtocolError(ENHANCE_YOUR_CALM, "a header block that is too large")
                raise ProtocolError(FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            if end - begin < size:
                break
            self.handle_control(kind, flags, number, bytes(view[begin : begin + size]))
            at = begin + size
        self._held = end - at
        if at and self._held:
            self._buffer[: self._held] = self._buffer[at:end]

    def _begin_data(self, number: int, flags: int, size: int, padding: int | None) -> None:
        if size > DATA_FRAME_BYTES:
            raise ProtocolError(FRAME_SIZE_ERROR, f"a frame of {size} bytes")
        left = size - (0 if padding is None else padding + 1)
        if left < 0:
            raise ProtocolError(PROTOCOL_ERROR, "a frame with more padding than bytes")
        self._stream = self.accept_data(number, size)
        if not left and not flags & END_STREAM:
            self.count_glitch()
        if self._stream is not None:
            self._stream.received += left
            if self._stream.announced is not None and self._stream.received > self._stream.announced:
                self.fail_stream(self._stream)
                self._stream = None
        self._left, self._padding, self._ends_stream = left, padding or 0, bool(flags & END_STREAM)

    def _read_data(self, view: memoryview, at: int, end: int) -> int:
        """Hand on what has come of the data frame, skip its padding. Returns the offset behind both."""
        part = view[at : min(at + self._left, end)]
        self._left -= len(part)
        if part and self._stream is not None:
            self._stream.feed(part)
        at += len(part)
        skipped = 0 if self._left else min(self._padding, end - at)
        self._padding -= skipped
        return at + skipped

    def _end_data(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and self._ends_stream:
            self.end_of_stream(stream)
        elif stream is not None:
            stream.extend_window()

"""One call over an HTTP/2 connection: length-prefixed messages in both directions, as gRPC has them.

A message is read into the memory that it is handed on in: large ones are copied by the kernel alone.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from veltair.grpc.http2 import frames
from veltair.grpc.http2.frames import FLOW_CONTROL_ERROR, PREFIX, STREAM_WINDOW_BYTES, WORD, ProtocolError

if TYPE_CHECKING:
    from veltair.grpc.http2.connection import Connection
    from veltair.grpc.http2.hpack import Field


class Stream(ABC):
    """Subclasses say what becomes of what comes in."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: of a message that is taken."""
        self.number = 0
        self.connection: Connection  # set by it
        self.closed = False  # nothing is sent or heard of it any more
        self.hears = self.speaks = True  # whether the other side, and this one, has not said its last
        self.window = 0  # bytes that may go
        self.out: deque[tuple[int, int, memoryview]] = deque()  # frames that wait: kind, flags, payload
        self._most_bytes = most_bytes
        self._prefix = bytearray()
        self._message: memoryview | None = None  # in arrival
        self._filled = self._compressed = 0
        self._credit, self._owed = STREAM_WINDOW_BYTES, 0  # bytes that may come; that came since the last update
        self._said_last = False
        self._drained: asyncio.Future[None] | None = None

    # For subclasses

    @abstractmethod
    def headers(self, fields: list[Field]) -> None:
        """A header list came: the head of a request or response, or trailers."""

    @abstractmethod
    def message(self, data: memoryview, *, compressed: bool) -> None:
        """A whole one came."""

    @abstractmethod
    def too_large(self, size: int) -> None:
        """A message was announced that has more than `most_bytes`: the stream has to end."""

    @abstractmethod
    def ended(self) -> None:
        """The other side sends no more."""

    @abstractmethod
    def broken(self, code: int | None) -> None:
        """The other side gave it up, or with None the connection is lost. The stream is closed."""

    def reads(self) -> bool:
        """Whether more may come in than was allowed already."""
        return True

    # To send

    def queue(self, kind: int, payload: bytes | memoryview, *, end: bool = False) -> None:
        """A frame of headers, or as many of data as it takes, that leave with what is sent next; none behind an end."""
        if not self.closed and not self._said_last:
            self._said_last = end
            flags = (frames.END_HEADERS if kind == frames.HEADERS else 0) | (frames.END_STREAM if end else 0)
            self.out.append((kind, flags, memoryview(payload)))

    def send(self, kind: int, payload: bytes | memoryview, *, end: bool = False) -> None:
        """As `queue`, and all of it leaves now, but for what windows and transport hold back."""
        self.queue(kind, payload, end=end)
        if not self.closed:
            self.connection.pump(self)

    async def drained(self) -> None:
        """Until all that was sent has left for the transport, or never will."""
        if self.out:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def reset(self, code: int) -> None:
        """End it at once."""
        if not self.closed:
            self.connection.write(frames.RST_STREAM, 0, self.number, WORD.pack(code))
            self.connection.drop(self)

    # For the connection

    def feed(self, data: memoryview) -> None:
        """A part of what data frames carry: messages, each behind a flag and its length."""
        while not self.closed:
            if (message := self._message) is None:
                need = PREFIX.size - len(self._prefix)
                self._prefix += data[:need]
                data = data[need:]
                if len(self._prefix) < PREFIX.size:
                    return
                self._compressed, size = PREFIX.unpack(self._prefix)
                if size > self._most_bytes:
                    self.too_large(size)
                    return
                message = self._message = np.empty(size, np.uint8).data
                self._filled = 0
            begin = self._filled
            part = data[: len(message) - begin]
            message[begin : begin + len(part)] = part
            self.filled(len(part))
            data = data[len(part) :]
            if not data:
                return

    def room(self) -> memoryview | None:
        """Of the message in arrival, what has not come; None when there is none."""
        return None if self._message is None or self.closed else self._message[self._filled :]

    def filled(self, size: int) -> None:
        """More of the message in arrival is there."""
        self._filled += size
        message = self._message
        if message is not None and self._filled == len(message) and not self.closed:
            self._message = None
            self._prefix.clear()
            self.message(message, compressed=bool(self._compressed))

    def came(self, size: int) -> None:
        """Of data, by what counts for the window."""
        self._credit -= size
        if self._credit < 0:
            raise ProtocolError(FLOW_CONTROL_ERROR, "more data than the stream's window")
        self._owed += size
        self.settle()

    def settle(self) -> None:
        """Let more come, where it is read and worth a frame."""
        if self._owed > STREAM_WINDOW_BYTES // 2 and self.hears and self.reads():
            self.connection.write(frames.WINDOW_UPDATE, 0, self.number, WORD.pack(self._owed))
            self._credit += self._owed
            self._owed = 0

    def flushed(self) -> None:
        """Nothing waits any more."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def close(self) -> None:
        self.closed = True
        self.out.clear()
        self.flushed()

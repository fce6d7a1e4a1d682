"""One call over an HTTP/2 connection: length-prefixed messages in both directions, as gRPC defines them.

A message is read into the memory in which it is handed on: the kernel alone copies large ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from veltair.grpc.http2 import frames
from veltair.grpc.http2.frames import FLOW_CONTROL_ERROR, MESSAGE_PREFIX, WORD, ProtocolError

if TYPE_CHECKING:
    from veltair.grpc.http2.hpack import Field
    from veltair.grpc.http2.stream_table import StreamTable


class Stream(ABC):
    """One stream of a connection; subclasses handle what it receives.

    ::

        class Echo(Stream):
            def message_received(self, data, *, compressed):
                self.send(DATA, message_prefix(len(data)) + bytes(data))

    Args:
        max_message_bytes: largest message that is accepted.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self.number = 0
        self.connection: StreamTable  # set by it
        self.closed = False  # it neither sends nor receives any more
        self.known = False  # the other side has a frame of it: a client's stream without any was never open
        self.was_reset = False  # by us
        self.announced: int | None = None  # bytes of data, by content-length
        self.received = 0  # of them
        self.remote_open = self.local_open = True  # the other side, and this one, may still send
        self.send_window = 0  # bytes that may be sent
        self.pending: deque[tuple[int, int, memoryview]] = deque()  # frames to send: kind, flags, payload
        self._max_message_bytes = max_message_bytes
        self._prefix = bytearray()
        self._message: memoryview | None = None  # being received
        self._filled = self._compressed = 0
        self._refused = False  # a message was too large
        self.receive_window = 0  # bytes that the other side may send
        self._end_queued = False

    # For subclasses

    @abstractmethod
    def headers_received(self, fields: list[Field]) -> None:
        """A header list is complete: the head of a request or response, or trailers."""

    def head_too_long(self) -> None:
        """The head of a request is larger than is accepted: the stream has to end."""
        self.reset(frames.ENHANCE_YOUR_CALM)

    def out_of_memory(self) -> None:
        """There is no memory for a message: the stream has to end. Further data is dropped."""
        self.reset(frames.ENHANCE_YOUR_CALM)

    @abstractmethod
    def message_received(self, data: memoryview, *, compressed: bool) -> None:
        """A message is complete."""

    @abstractmethod
    def message_too_large(self, size: int) -> None:
        """A message of more than `max_message_bytes` is announced: the stream has to end. Further data is dropped."""

    @abstractmethod
    def end_received(self) -> None:
        """The other side sends no more."""

    @abstractmethod
    def aborted(self, code: int | None) -> None:
        """The other side reset the stream, or with None the connection is lost. The stream is closed."""

    def wants_more(self) -> bool:
        """Whether the other side may send beyond the present window."""
        return True

    def flushed(self) -> None:  # noqa: B027 (most subclasses do not care)
        """No frame is pending any more: all have been handed to the transport, or the stream is closed."""

    # Sending

    @property
    def unsent(self) -> bool:
        """Whether something that was sent waits for its turn."""
        return bool(self.pending)

    def queue(self, kind: int, payload: bytes | memoryview, *, end: bool = False) -> None:
        """Add a frame of headers, or data of any size, that leaves with the next `send`; ignored behind an end."""
        if not self.closed and not self._end_queued:
            self._end_queued = end
            flags = (frames.END_HEADERS if kind == frames.HEADERS else 0) | (frames.END_STREAM if end else 0)
            self.pending.append((kind, flags, memoryview(payload)))

    def send(self, kind: int, payload: bytes | memoryview, *, end: bool = False) -> None:
        """Queue a frame, and write all that windows and transport allow."""
        self.queue(kind, payload, end=end)
        if not self.closed:
            self.connection.flush(self)

    def reset(self, code: int) -> None:
        """End the stream at once."""
        if not self.closed:
            self.was_reset = True
            if self.known:
                self.connection.write_frame(frames.RST_STREAM, 0, self.number, WORD.pack(code))
            self.connection.drop(self)

    def extend_window(self) -> None:
        """Let the other side send the rest of a message and a window beyond, where it is wanted and worth a frame."""
        window = self.connection.granted_window
        rest = 0 if self._message is None else len(self._message) - self._filled
        more = window + rest - self.receive_window
        if more > window // 2 and self.remote_open and not self.closed and self.wants_more():
            self.connection.write_frame(frames.WINDOW_UPDATE, 0, self.number, WORD.pack(more))
            self.receive_window += more

    # For the connection

    def feed(self, data: memoryview) -> None:
        """Take a part of the data frames' payload: messages, each behind a flag and its length."""
        while not self.closed and not self._refused:
            if (message := self._message) is None:
                missing = MESSAGE_PREFIX.size - len(self._prefix)
                self._prefix += data[:missing]
                data = data[missing:]
                if len(self._prefix) < MESSAGE_PREFIX.size:
                    return
                self._compressed, size = MESSAGE_PREFIX.unpack(self._prefix)
                if size > self._max_message_bytes:
                    self._refused = True
                    self.message_too_large(size)
                    return
                try:
                    message = self._message = np.empty(size, np.uint8).data
                except MemoryError:
                    self._refused = True
                    self.out_of_memory()
                    return
                self._filled = 0
            begin = self._filled
            part = data[: len(message) - begin]
            message[begin : begin + len(part)] = part
            self.message_filled(len(part))
            data = data[len(part) :]
            if not data:
                return

    def message_rest(self) -> memoryview | None:
        """The memory of the message being received that is not filled yet; None when there is no such message."""
        return None if self._message is None or self.closed else self._message[self._filled :]

    def message_filled(self, size: int) -> None:
        """`size` more bytes of the message are in its memory."""
        self._filled += size
        message = self._message
        if message is not None and self._filled == len(message) and not self.closed:
            self._message = None
            self._prefix.clear()
            self.message_received(message, compressed=bool(self._compressed))

    def count_data(self, size: int) -> None:
        """Count a data frame against the window. Raises ProtocolError when it exceeds it."""
        self.receive_window -= size
        if self.receive_window < 0:
            raise ProtocolError(FLOW_CONTROL_ERROR, "more data than the stream's window")

    def close(self) -> None:
        self.closed = True
        self.pending.clear()
        self.flushed()

"""Both implementations of an HTTP/2 connection behind one interface, so that the same tests run against both.

`PythonEnd` is `veltair.grpc.http2`; `NativeEnd` (native_end.py) is `veltair.grpc.native`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from veltair.grpc.http2 import frames, hpack
from veltair.grpc.http2.connection import Connection
from veltair.grpc.http2.stream import Stream
from veltair.grpc.transport import WRITE_BUFFER_BYTES

Event: TypeAlias = tuple[Any, ...]  # a name, such as "message", and what came with it
LOST = -1  # the code of "aborted" when the connection is lost


class Call(ABC):
    """A stream and the events of it: headers, long_head, message, too_large, end, aborted, flushed; last, closed."""

    number: int
    closed: bool
    remote_open: bool

    def __init__(self) -> None:
        self.events: list[Event] = []

    def of_kind(self, kind: str) -> list[Any]:
        """What came with the events of one name."""
        return [event[1] for event in self.events if event[0] == kind]

    @abstractmethod
    def headers(self, fields: Sequence[hpack.Field], *, end: bool = False) -> None: ...

    @abstractmethod
    def data(self, data: bytes, *, end: bool = False) -> None: ...

    @abstractmethod
    def reset(self, code: int) -> None: ...

    @abstractmethod
    def hold(self, held: bool) -> None: ...


Reaction: TypeAlias = Callable[[Call, Event], None]  # called for every event but "closed"


class End(ABC):
    """One end of a connection in memory.

    Args:
        server: which end.
        react: what the owner does when something happens on a stream.
        max_message_bytes: largest message that it accepts.
    """

    def __init__(self, server: bool, react: Reaction, max_message_bytes: int) -> None:
        self.is_server, self.react, self.max_message_bytes = server, react, max_message_bytes
        self.calls: list[Call] = []  # all that there were
        self.ready = 0  # settings of the other side that came

    @abstractmethod
    def receive(self, data: memoryview) -> int:
        """One read of as many of these bytes as it takes. Returns how many."""

    def feed(self, data: bytes, most: int = 1 << 30) -> None:
        """Hand over bytes in reads of at most `most`."""
        view = memoryview(data)
        while view and not self.failed:
            view = view[self.receive(view[:most]) :]

    @abstractmethod
    def take(self, most: int = 1 << 30) -> bytes:
        """What waits to be sent, and is sent now."""

    @property
    @abstractmethod
    def failed(self) -> bool: ...

    @property
    @abstractmethod
    def leaving(self) -> bool: ...

    @property
    @abstractmethod
    def streams(self) -> int: ...

    @property
    @abstractmethod
    def max_streams(self) -> int: ...

    @abstractmethod
    def open(self) -> Call: ...

    @abstractmethod
    def leave(self) -> None: ...

    @abstractmethod
    def calm(self, glitches: int) -> None: ...

    @abstractmethod
    def lose(self) -> None:
        """The transport is gone. No further use."""


class MemoryTransport:
    """Collects what a connection writes, and pauses it as a transport of asyncio does."""

    def __init__(self, connection: Connection) -> None:
        self.written, self.closed = bytearray(), False
        self._connection, self._paused = connection, False

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, parts: list[bytes | memoryview]) -> None:
        self.written += b"".join(parts)
        if len(self.written) > WRITE_BUFFER_BYTES and not self._paused:
            self._paused = True
            self._connection.pause_writing()

    def take(self, most: int) -> bytes:
        sent = bytes(self.written[:most])
        del self.written[:most]
        if self._paused and len(self.written) <= WRITE_BUFFER_BYTES:
            self._paused = False
            self._connection.resume_writing()
        return sent

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class PythonCall(Stream, Call):
    def __init__(self, end: PythonEnd) -> None:
        Call.__init__(self)
        Stream.__init__(self, end.max_message_bytes)
        self.end, self.held = end, False
        end.calls.append(self)

    def add(self, *event: Any) -> None:
        self.events.append(event)
        self.end.react(self, event)

    def headers_received(self, fields: list[hpack.Field]) -> None:
        self.add("headers", fields)

    def head_too_long(self) -> None:
        self.add("long_head")

    def message_received(self, data: memoryview, *, compressed: bool) -> None:
        self.add("message", bytes(data), compressed)

    def message_too_large(self, size: int) -> None:
        self.add("too_large", size)

    def end_received(self) -> None:
        self.add("end")

    def aborted(self, code: int | None) -> None:
        self.events.remove(("closed",))  # which comes first here
        self.add("aborted", LOST if code is None else code)
        self.events.append(("closed",))

    def flushed(self) -> None:
        if not self.closed:
            self.add("flushed")

    def wants_more(self) -> bool:
        return not self.held

    def headers(self, fields: Sequence[hpack.Field], *, end: bool = False) -> None:
        self.send(frames.HEADERS, hpack.encode(fields), end=end)

    def data(self, data: bytes, *, end: bool = False) -> None:
        self.send(frames.DATA, data, end=end)

    def hold(self, held: bool) -> None:
        self.held = held
        if not held and not self.closed:
            self.extend_window()


class _PythonConnection(Connection):
    def __init__(self, end: PythonEnd) -> None:
        super().__init__((lambda: PythonCall(end)) if end.is_server else None)
        self._end = end

    def settings_received(self) -> None:
        self._end.ready += 1

    def drop(self, stream: Stream) -> None:
        super().drop(stream)
        assert isinstance(stream, PythonCall)
        stream.events.append(("closed",))


class PythonEnd(End):
    def __init__(self, server: bool, react: Reaction, max_message_bytes: int = 1 << 20) -> None:
        super().__init__(server, react, max_message_bytes)
        self._connection = _PythonConnection(self)
        self._transport = MemoryTransport(self._connection)
        self._connection.start(self._transport)

    def receive(self, data: memoryview) -> int:
        target = self._connection.get_buffer(-1)
        size = min(len(target), len(data))
        target[:size] = data[:size]
        self._connection.buffer_updated(size)
        return size

    def take(self, most: int = 1 << 30) -> bytes:
        return self._transport.take(most)

    @property
    def failed(self) -> bool:
        return self._transport.closed

    @property
    def leaving(self) -> bool:
        return self._connection.leaving

    @property
    def streams(self) -> int:
        return len(self._connection.streams)

    @property
    def max_streams(self) -> int:
        return self._connection.max_streams

    def open(self) -> Call:
        call = PythonCall(self)
        self._connection.open_stream(call)
        return call

    def leave(self) -> None:
        self._connection.leave()

    def calm(self, glitches: int) -> None:
        self._connection.calm(glitches)

    def lose(self) -> None:
        self._connection.connection_lost(None)

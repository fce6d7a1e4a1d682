"""One end of an HTTP/2 connection (RFC 9113) without TLS, as gRPC uses it: frames, header blocks, flow control."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from veltair.grpc.http2 import frames
from veltair.grpc.http2.frames import (
    ACK,
    CONNECTION_WINDOW_BYTES,
    CONTROL_BYTES,
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEAD,
    LARGEST_WINDOW_BYTES,
    MOST_STREAMS,
    PADDED,
    PREFACE,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_WINDOW_BYTES,
    WINDOW_UPDATE,
    WORD,
    ProtocolError,
    head,
    word,
)
from veltair.grpc.http2.hpack import Decoder, Field, HeaderError
from veltair.grpc.http2.stream import Stream

SCRATCH_BYTES = 1 << 16  # of one read; what of a message is to come beyond a quarter of it is read in place
WRITE_BUFFER_BYTES = 1 << 20  # unsent, above which nothing is added but answers to control frames
MOST_UNREAD = 1000  # answers to control frames behind those; who asks on without reading would fill our memory
MOST_RESETS = 1000  # streams that the other side gave up, more than came to their end: each has cost us a call


class Connection(asyncio.BufferedProtocol):
    """Either side's end."""

    def __init__(self, accept: Callable[[], Stream] | None = None) -> None:
        """`accept`: makes the stream of a request whose headers follow; a client's end has none."""
        self._accept = accept
        self.transport: asyncio.Transport
        self.streams: dict[int, Stream] = {}
        self.most_streams = MOST_STREAMS  # at once, that the other side takes
        self.last = 0  # greatest number of a stream that was begun
        self.leaving = False  # one side said that no stream shall be begun any more
        self._buffer = bytearray(SCRATCH_BYTES)
        self._scratch = memoryview(self._buffer)
        self._held = 0  # bytes in it
        self._direct: memoryview | None = None  # where the next read goes in place of it
        self._stream: Stream | None = None  # whose data frame is being read; None: nobody wants it
        self._left = self._padding = 0  # bytes of that frame to come
        self._ends = False  # its stream
        self._decoder = Decoder()
        self._block: bytearray | None = None  # of headers that go on in the next frame
        self._block_of = (0, 0)  # stream, flags
        self._owed = 0  # bytes that came since the last update of the window
        self._window, self._stream_window = DEFAULT_WINDOW_BYTES, DEFAULT_WINDOW_BYTES  # bytes that may go
        self._frame_bytes = DEFAULT_FRAME_BYTES  # of a frame that goes
        self._paused = self._greeted = False
        self._resets = 0  # streams that the other side gave up, less those that came to their end
        self._unread = 0  # answers to control frames that were written while the transport was full

    @property
    def serves(self) -> bool:
        """Whether it is the server's."""
        return self._accept is not None

    def agreed(self) -> None:
        """The other side's settings were taken up."""

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has another base
        self.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        # Who vanished without a word is noticed by the system.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not self.serves:
            self.transport.write(PREFACE)
        settings = {
            frames.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
            frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            frames.MAX_FRAME_SIZE: FRAME_BYTES,
            frames.MAX_HEADER_LIST_SIZE: CONTROL_BYTES,
        }
        self.write(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in settings.items()))
        self.write(WINDOW_UPDATE, 0, 0, WORD.pack(CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES))

    def connection_lost(self, error: Exception | None) -> None:
        self.leaving = True
        for stream in list(self.streams.values()):
            self.drop(stream)
            stream.broken(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch[self._held :] if self._direct is None else self._direct

    def buffer_updated(self, size: int) -> None:
        try:
            if self._direct is not None and self._stream is not None:
                self._left -= size
                self._stream.filled(size)
                if not self._left and not self._padding:
                    self._data_ended()
            else:
                self._held += size
                self._parse()
        except ProtocolError as error:
            self.write(GOAWAY, 0, 0, WORD.pack(self.last) + WORD.pack(error.code) + str(error).encode())
            self.transport.close()
            self._held = 0
            self.connection_lost(error)
        self._direct = None
        if self._stream is not None and self._left > SCRATCH_BYTES // 4 and (room := self._stream.room()):
            self._direct = room[: self._left]

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump_all()

    # What goes out

    def write(self, kind: int, flags: int, number: int, payload: bytes = b"") -> None:
        self.transport.write(head(kind, flags, number, len(payload)) + payload)

    def begin(self, stream: Stream) -> None:
        """The client's: number a stream, before it sends."""
        stream.number = self.last = self.last + 2 if self.last else 1
        self._add(stream)

    def pump(self, stream: Stream) -> None:
        """Write what waits, as far as windows and the transport allow, in one go: each costs a system call."""
        out, parts, over = stream.out, list[bytes | memoryview](), False
        while out and not self._paused:
            kind, flags, payload = out[0]
            size = len(payload)
            if kind == DATA and size:
                size = min(size, self._frame_bytes, self._window, stream.window)
                if size <= 0:
                    break
                self._window -= size
                stream.window -= size
            if size < len(payload):
                parts += head(kind, 0, stream.number, size), payload[:size]
                out[0] = kind, flags, payload[size:]
            else:
                parts += head(kind, flags, stream.number, size), payload
                out.popleft()
                over = bool(flags & END_STREAM)
        if parts:
            self.transport.writelines(parts)
        if over:
            stream.speaks = False
            self._settle(stream)
        if not out:
            stream.flushed()

    def leave(self) -> None:
        """Begin no more streams, and say so."""
        if not self.leaving:
            self.leaving = True
            self.write(GOAWAY, 0, 0, WORD.pack(self.last) + WORD.pack(frames.NO_ERROR))

    def drop(self, stream: Stream) -> None:
        """Forget a stream."""
        self.streams.pop(stream.number, None)
        stream.close()

    def _pump_all(self) -> None:
        for stream in [stream for stream in self.streams.values() if stream.out]:
            self.pump(stream)

    def _add(self, stream: Stream) -> None:
        stream.connection, stream.window = self, self._stream_window
        self.streams[stream.number] = stream

    def _settle(self, stream: Stream) -> None:
        """Either side said its last: once both have it is over, and a client that sends beyond that is told to stop."""
        if not stream.closed and not stream.speaks:
            self._resets = max(self._resets - 1, 0)
            if not stream.hears:
                self.drop(stream)
            elif self.serves:
                stream.reset(frames.NO_ERROR)

    # What comes in

    def _parse(self) -> None:
        view, at, end = self._scratch, 0, self._held
        if self.serves and not self._greeted:
            if not PREFACE.startswith(view[: min(end, len(PREFACE))]):
                raise ProtocolError(PROTOCOL_ERROR, "not HTTP/2")
            if end < len(PREFACE):
                return
            at, self._greeted = len(PREFACE), True
        while not self.transport.is_closing():
            if self._left or self._padding:
                at = self._data(view, at, end)
                if self._left or self._padding:
                    break
                self._data_ended()
            if end - at < HEAD.size:
                break
            high, low, kind, flags, number = HEAD.unpack_from(view, at)
            size, number = high << 16 | low, number & 0x7FFFFFFF
            begin = at + HEAD.size
            if kind == DATA:
                padded = 1 if flags & PADDED else 0
                if end - begin < padded:
                    break
                self._data_begins(number, flags, size, view[begin] if padded else None)
                at = begin + padded
                if not self._left and not self._padding:
                    self._data_ended()
                continue
            if size > CONTROL_BYTES:
                raise ProtocolError(FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            if end - begin < size:
                break
            self._control(kind, flags, number, bytes(view[begin : begin + size]))
            at = begin + size
        self._held = end - at
        if at and self._held:
            self._buffer[: self._held] = self._buffer[at:end]

    def _data_begins(self, number: int, flags: int, size: int, padding: int | None) -> None:
        if self._block is not None or not 0 < number <= self.last:
            raise ProtocolError(PROTOCOL_ERROR, f"data of stream {number}, which is not open")
        if size > FRAME_BYTES:
            raise ProtocolError(FRAME_SIZE_ERROR, f"a frame of {size} bytes")
        self._left, self._padding = size - (0 if padding is None else padding + 1), padding or 0
        stream = self.streams.get(number)
        if self._left < 0 or (stream is not None and not stream.hears):
            raise ProtocolError(PROTOCOL_ERROR, f"more padding than bytes, or data of stream {number} behind its end")
        self._stream, self._ends = stream, bool(flags & END_STREAM)
        self._owed += size
        if self._owed > CONNECTION_WINDOW_BYTES // 2:
            self.write(WINDOW_UPDATE, 0, 0, WORD.pack(self._owed))
            self._owed = 0
        if stream is not None:
            stream.came(size)

    def _data(self, view: memoryview, at: int, end: int) -> int:
        """What of the data frame has come, then of its padding. Returns where it ends."""
        part = view[at : min(at + self._left, end)]
        self._left -= len(part)
        if part and self._stream is not None:
            self._stream.feed(part)
        at += len(part)
        skipped = 0 if self._left else min(self._padding, end - at)
        self._padding -= skipped
        return at + skipped

    def _data_ended(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and self._ends:
            self._ended(stream)

    def _ended(self, stream: Stream) -> None:
        if not stream.closed:
            stream.hears = False
            stream.ended()
            self._settle(stream)

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or number != self._block_of[0]):
            raise ProtocolError(PROTOCOL_ERROR, "a header block that is cut off")
        if kind in (frames.HEADERS, frames.CONTINUATION):
            self._fragment(kind, flags, number, payload)
        elif kind == WINDOW_UPDATE:
            self._widen(number, word(payload) & LARGEST_WINDOW_BYTES)
        elif kind == RST_STREAM:
            code = word(payload)
            if not 0 < number <= self.last:
                raise ProtocolError(PROTOCOL_ERROR, f"stream {number} is not open")
            if (stream := self.streams.get(number)) is not None:
                self.drop(stream)
                stream.broken(code)
                self._resets += 1
                if self._resets > MOST_RESETS:
                    raise ProtocolError(frames.ENHANCE_YOUR_CALM, "calls that are given up")
        elif kind == SETTINGS and not flags & ACK:
            self._adopt(payload)
        elif kind == frames.PING and not flags & ACK:
            self._reply(frames.PING, payload)
        elif kind == GOAWAY:
            self._left_behind(word(payload[:4]) & LARGEST_WINDOW_BYTES)
        elif kind == frames.PUSH_PROMISE:
            raise ProtocolError(PROTOCOL_ERROR, "a pushed response")

    def _reply(self, kind: int, payload: bytes = b"") -> None:
        self._unread = self._unread + 1 if self._paused else 0
        if self._unread > MOST_UNREAD:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "control frames whose answers are not read")
        self.write(kind, ACK, 0, payload)

    def _left_behind(self, last: int) -> None:
        """The other side leaves; streams of ours above `last` it has not looked at."""
        self.leaving = True
        if not self.serves:
            for stream in [stream for number, stream in self.streams.items() if number > last]:
                self.drop(stream)
                stream.broken(frames.REFUSED_STREAM)

    def _adopt(self, payload: bytes) -> None:
        if len(payload) % SETTING.size:
            raise ProtocolError(FRAME_SIZE_ERROR, "settings of odd length")
        for key, value in SETTING.iter_unpack(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                if value > LARGEST_WINDOW_BYTES:
                    raise ProtocolError(FLOW_CONTROL_ERROR, "a window that is too large")
                for stream in self.streams.values():
                    stream.window += value - self._stream_window
                self._stream_window = value
            elif key == frames.MAX_FRAME_SIZE:
                if not DEFAULT_FRAME_BYTES <= value < 1 << 24:
                    raise ProtocolError(PROTOCOL_ERROR, f"frames of {value} bytes")
                self._frame_bytes = value
            elif key == frames.MAX_CONCURRENT_STREAMS:
                self.most_streams = value
        self._reply(SETTINGS)
        self.agreed()
        self._pump_all()

    def _widen(self, number: int, size: int) -> None:
        if not size or number > self.last:
            raise ProtocolError(PROTOCOL_ERROR, f"the window of stream {number} cannot grow by {size}")
        stream = self.streams.get(number)
        if number == 0:
            self._window += size
            self._pump_all()
        elif stream is not None:
            stream.window += size
            self.pump(stream)
        if max(self._window, stream.window if stream else 0) > LARGEST_WINDOW_BYTES:
            raise ProtocolError(FLOW_CONTROL_ERROR, "a window that is too large")

    def _fragment(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == frames.HEADERS:
            skipped = padding = 0
            if flags & PADDED:
                skipped, padding = 1, payload[0] if payload else 0
            if flags & frames.HAS_PRIORITY:
                skipped += 5
            if skipped + padding > len(payload):
                raise ProtocolError(PROTOCOL_ERROR, "a frame with more padding than bytes")
            self._block, self._block_of = bytearray(payload[skipped : len(payload) - padding]), (number, flags)
        elif self._block is None:
            raise ProtocolError(PROTOCOL_ERROR, "a continuation of nothing")
        else:
            self._block += payload
        if len(self._block) > CONTROL_BYTES:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "a header block that is too large")
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            try:
                fields = self._decoder.decode(block)
            except HeaderError as error:
                raise ProtocolError(frames.COMPRESSION_ERROR, str(error)) from None
            self._headers(number, fields, ends=bool(self._block_of[1] & END_STREAM))

    def _headers(self, number: int, fields: list[Field], *, ends: bool) -> None:
        stream = self.streams.get(number)
        if stream is None and self._accept is not None and number > self.last:
            if not number % 2:
                raise ProtocolError(PROTOCOL_ERROR, f"stream {number} is the server's")
            self.last = number
            if self.leaving or len(self.streams) >= MOST_STREAMS:
                self.write(RST_STREAM, 0, number, WORD.pack(frames.REFUSED_STREAM))
                return
            stream = self._accept()
            stream.number = number
            self._add(stream)
        if stream is not None:
            if not stream.hears:
                raise ProtocolError(PROTOCOL_ERROR, f"headers of stream {number} behind its end")
            stream.headers(fields)
            if ends:
                self._ended(stream)

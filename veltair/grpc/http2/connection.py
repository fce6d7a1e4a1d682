"""One end of an HTTP/2 connection (RFC 9113) without TLS, as gRPC uses it: streams, settings, flow control."""

from __future__ import annotations

from collections.abc import Callable

from veltair.grpc.http2 import frames
from veltair.grpc.http2.frame_reader import FrameReader, Transport
from veltair.grpc.http2.frames import (
    ACK,
    CONNECTION_WINDOW_BYTES,
    CONTROL_BYTES,
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    LARGEST_WINDOW_BYTES,
    MAX_STREAMS,
    PREFACE,
    PROTOCOL_ERROR,
    SETTING,
    SETTINGS,
    STREAM_WINDOW_BYTES,
    WINDOW_UPDATE,
    WORD,
    ProtocolError,
    check_size,
    frame_head,
    parse_word,
)
from veltair.grpc.http2.header_blocks import HeaderBlockReader
from veltair.grpc.http2.hpack import Field
from veltair.grpc.http2.stream import Stream

# Answers to control frames that may wait behind a full transport: a sender that never reads would fill our memory.
MAX_UNREAD_REPLIES = 1000
# Streams that the other side resets, beyond those that end normally: each of them has cost us a call.
MAX_RESETS = 1000


class Connection(FrameReader):
    """Either end of a connection. A client opens streams; a server's end accepts them.

    ::

        connection = Connection()  # a client's end
        connection.start(transport)
        connection.open_stream(call)
        call.queue(HEADERS, hpack.encode(fields))
        call.send(DATA, message_prefix(len(data)) + data, end=True)

    Args:
        accept: makes the stream of a request whose headers follow; None for a client's end.
    """

    def __init__(self, accept: Callable[[], Stream] | None = None) -> None:
        super().__init__(expects_preface=accept is not None)
        self._accept = accept
        self.streams: dict[int, Stream] = {}
        self.max_streams = MAX_STREAMS  # at the same time, by the other side's settings
        self.last_stream = 0  # greatest number of a stream so far
        self.leaving = False  # one side has announced that no streams begin any more
        self._headers = HeaderBlockReader()
        self._unacknowledged = 0  # bytes received since the last update of the connection's window
        self._window, self._stream_window = DEFAULT_WINDOW_BYTES, DEFAULT_WINDOW_BYTES  # bytes that may be sent
        self._frame_bytes = DEFAULT_FRAME_BYTES  # largest data frame that may be sent
        self._paused = False  # the transport is full
        self._resets = 0  # streams that the other side has reset, less those that have ended normally
        self._unread_replies = 0  # answers to control frames since the transport is full

    @property
    def is_server(self) -> bool:
        return self._accept is not None

    def settings_received(self) -> None:
        """The other side's settings are in force. For subclasses."""

    # The transport

    def start(self, transport: Transport) -> None:
        """Send the preface and our settings."""
        self.transport = transport
        if not self.is_server:
            transport.write(PREFACE)
        settings = {
            frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            frames.MAX_FRAME_SIZE: frames.DATA_FRAME_BYTES,
            frames.MAX_HEADER_LIST_SIZE: CONTROL_BYTES,
        }
        self.write_frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in settings.items()))
        self.write_frame(WINDOW_UPDATE, 0, 0, WORD.pack(CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES))

    def connection_lost(self, error: Exception | None) -> None:
        self.leaving = True
        for stream in list(self.streams.values()):
            self.drop(stream)
            stream.aborted(None)

    def fail(self, error: ProtocolError) -> None:
        last, code = WORD.pack(self.last_stream), WORD.pack(error.code)
        self.write_frame(GOAWAY, 0, 0, last + code + str(error).encode())
        self.transport.close()
        self.connection_lost(error)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush_all()

    # Sending

    def write_frame(self, kind: int, flags: int, number: int, payload: bytes = b"") -> None:
        """Write a frame that flow control does not hold back."""
        self.transport.write(frame_head(kind, flags, number, len(payload)) + payload)

    def open_stream(self, stream: Stream) -> None:
        """Number a client's stream, before it sends."""
        stream.number = self.last_stream = self.last_stream + 2 if self.last_stream else 1
        self._add(stream)

    def flush(self, stream: Stream) -> None:
        """Write a stream's frames, as far as windows and transport allow, in one go: each write is a system call."""
        pending, parts, ended = stream.pending, list[bytes | memoryview](), False
        while pending and not self._paused:
            kind, flags, payload = pending[0]
            size = len(payload)
            if kind == DATA and size:
                size = min(size, self._frame_bytes, self._window, stream.send_window)
                if size <= 0:
                    break
                self._window -= size
                stream.send_window -= size
            if size < len(payload):
                parts += frame_head(kind, 0, stream.number, size), payload[:size]
                pending[0] = kind, flags, payload[size:]
            else:
                parts += frame_head(kind, flags, stream.number, size), payload
                pending.popleft()
                ended = bool(flags & END_STREAM)
        if parts:
            self.transport.writelines(parts)
        if ended:
            stream.local_open = False
            self._half_closed(stream)
        if not pending:
            stream.flushed()

    def leave(self) -> None:
        """Begin no more streams, and tell the other side."""
        if not self.leaving:
            self.leaving = True
            self.write_frame(GOAWAY, 0, 0, WORD.pack(self.last_stream) + WORD.pack(frames.NO_ERROR))

    def drop(self, stream: Stream) -> None:
        """Forget a stream."""
        self.streams.pop(stream.number, None)
        stream.close()

    def _flush_all(self) -> None:
        for stream in [stream for stream in self.streams.values() if stream.pending]:
            self.flush(stream)

    def _add(self, stream: Stream) -> None:
        stream.connection, stream.send_window = self, self._stream_window
        self.streams[stream.number] = stream

    def _half_closed(self, stream: Stream) -> None:
        """One side has ended. After both the stream is over; a client that still sends gets a reset."""
        if not stream.closed and not stream.local_open:
            self._resets = max(self._resets - 1, 0)
            if not stream.remote_open:
                self.drop(stream)
            elif self.is_server:
                stream.reset(frames.NO_ERROR)

    # Receiving

    def accept_data(self, number: int, size: int) -> Stream | None:
        if self._headers.unfinished_stream is not None or not 0 < number <= self.last_stream:
            raise ProtocolError(PROTOCOL_ERROR, f"data of stream {number}, which is not open")
        stream = self.streams.get(number)
        if stream is not None and not stream.remote_open:
            raise ProtocolError(PROTOCOL_ERROR, f"data of stream {number} behind its end")
        self._unacknowledged += size
        if self._unacknowledged > CONNECTION_WINDOW_BYTES // 2:
            self.write_frame(WINDOW_UPDATE, 0, 0, WORD.pack(self._unacknowledged))
            self._unacknowledged = 0
        if stream is not None:
            stream.count_data(size)
        return stream

    def end_of_stream(self, stream: Stream) -> None:
        if not stream.closed:
            stream.remote_open = False
            stream.end_received()
            self._half_closed(stream)

    def handle_control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        unfinished = self._headers.unfinished_stream
        if unfinished is not None and (kind != frames.CONTINUATION or number != unfinished):
            raise ProtocolError(PROTOCOL_ERROR, "a header block that is cut off")
        if kind in (frames.HEADERS, frames.CONTINUATION):
            if (block := self._headers.add(kind, flags, number, payload)) is not None:
                self._headers_received(number, *block)
        elif kind == WINDOW_UPDATE:
            self._grow_window(number, parse_word(payload) & LARGEST_WINDOW_BYTES)
        elif kind == frames.RST_STREAM:
            self._reset_received(number, parse_word(payload))
        elif kind == SETTINGS and not flags & ACK:
            self._apply_settings(payload)
        elif kind == frames.PING and not flags & ACK:
            check_size(payload, frames.PING_BYTES)
            self._reply(frames.PING, ACK, 0, payload)
        elif kind == GOAWAY:
            self._goaway_received(parse_word(payload[:4]) & LARGEST_WINDOW_BYTES)
        elif kind == frames.PUSH_PROMISE:
            raise ProtocolError(PROTOCOL_ERROR, "a pushed response")

    def _headers_received(self, number: int, fields: list[Field], ends_stream: bool) -> None:
        stream = self.streams.get(number)
        if stream is None and self._accept is not None and number > self.last_stream:
            if not number % 2:
                raise ProtocolError(PROTOCOL_ERROR, f"stream {number} is the server's")
            self.last_stream = number
            if self.leaving or len(self.streams) >= MAX_STREAMS:
                self._reply(frames.RST_STREAM, 0, number, WORD.pack(frames.REFUSED_STREAM))
                return
            stream = self._accept()
            stream.number = number
            self._add(stream)
        if stream is not None:
            if not stream.remote_open:
                raise ProtocolError(PROTOCOL_ERROR, f"headers of stream {number} behind its end")
            stream.headers_received(fields)
            if ends_stream:
                self.end_of_stream(stream)

    def _reset_received(self, number: int, code: int) -> None:
        if not 0 < number <= self.last_stream:
            raise ProtocolError(PROTOCOL_ERROR, f"stream {number} is not open")
        if (stream := self.streams.get(number)) is not None:
            self.drop(stream)
            stream.aborted(code)
            self._resets += 1
            if self._resets > MAX_RESETS:
                raise ProtocolError(frames.ENHANCE_YOUR_CALM, "too many calls that are reset")

    def _goaway_received(self, last: int) -> None:
        """The other side leaves; it has not processed our streams above `last`."""
        self.leaving = True
        if not self.is_server:
            for stream in [stream for number, stream in self.streams.items() if number > last]:
                self.drop(stream)
                stream.aborted(frames.REFUSED_STREAM)

    def _apply_settings(self, payload: bytes) -> None:
        if len(payload) % SETTING.size:
            raise ProtocolError(FRAME_SIZE_ERROR, "settings of odd length")
        for key, value in SETTING.iter_unpack(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                if value > LARGEST_WINDOW_BYTES:
                    raise ProtocolError(FLOW_CONTROL_ERROR, "a window that is too large")
                for stream in self.streams.values():
                    stream.send_window += value - self._stream_window
                self._stream_window = value
            elif key == frames.MAX_FRAME_SIZE:
                if not DEFAULT_FRAME_BYTES <= value < 1 << 24:
                    raise ProtocolError(PROTOCOL_ERROR, f"frames of {value} bytes")
                self._frame_bytes = value
            elif key == frames.MAX_CONCURRENT_STREAMS:
                self.max_streams = value
        self._reply(SETTINGS, ACK, 0)
        self.settings_received()
        self._flush_all()

    def _grow_window(self, number: int, size: int) -> None:
        if not size or number > self.last_stream:
            raise ProtocolError(PROTOCOL_ERROR, f"the window of stream {number} cannot grow by {size}")
        stream = self.streams.get(number)
        if number == 0:
            self._window += size
            self._flush_all()
        elif stream is not None:
            stream.send_window += size
            self.flush(stream)
        if max(self._window, stream.send_window if stream else 0) > LARGEST_WINDOW_BYTES:
            raise ProtocolError(FLOW_CONTROL_ERROR, "a window that is too large")

    def _reply(self, kind: int, flags: int, number: int, payload: bytes = b"") -> None:
        """Write a frame that answers one of the other side's."""
        self._unread_replies = self._unread_replies + 1 if self._paused else 0
        if self._unread_replies > MAX_UNREAD_REPLIES:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "control frames whose answers are not read")
        self.write_frame(kind, flags, number, payload)

"""What one end of an HTTP/2 connection sends, and the streams that it has (RFC 9113)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from veltair.grpc.http2 import frames
from veltair.grpc.http2.frame_reader import FrameReader, Transport
from veltair.grpc.http2.frames import (
    ANSWER_WINDOW_BYTES,
    CONNECTION_WINDOW_BYTES,
    CONTROL_BYTES,
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    END_STREAM,
    GOAWAY,
    MAX_STREAMS,
    PREFACE,
    PROTOCOL_ERROR,
    REQUEST_WINDOW_BYTES,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    WORD,
    ProtocolError,
    frame_head,
)
from veltair.grpc.http2.stream import Stream

# Answers to control frames that may wait behind a full transport: a sender that never reads would fill our memory.
MAX_UNREAD_REPLIES = 500
# Frames that cost more than they bring, beyond the calls that end normally; time forgives them (`calm`).
MAX_GLITCHES = 1000
SMALL_FRAME_BYTES = 256  # a part of a message that is cut smaller for lack of window is a glitch
REMEMBERED = 256  # streams that are over, whose late frames are told from those of others


class StreamTable(FrameReader):
    """The streams of a connection, and the frames that leave; `Connection` handles those that come.

    ::

        table.start(transport)
        table.flush(stream)

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
        self._window, self._stream_window = DEFAULT_WINDOW_BYTES, DEFAULT_WINDOW_BYTES  # bytes that may be sent
        self._frame_bytes = DEFAULT_FRAME_BYTES  # largest data frame that may be sent
        self._paused = False  # the transport is full
        self._glitches = 0
        self._over: deque[tuple[int, bool]] = deque(maxlen=REMEMBERED)  # streams, and whether we reset them
        self._unread_replies = 0  # answers to control frames since the transport is full

    @property
    def is_server(self) -> bool:
        return self._accept is not None

    @property
    def granted_window(self) -> int:
        """Bytes that the other side may send on a new stream."""
        return REQUEST_WINDOW_BYTES if self.is_server else ANSWER_WINDOW_BYTES

    def settings_received(self) -> None:
        """The other side's settings are in force. For subclasses."""

    def start(self, transport: Transport) -> None:
        """Send the preface and our settings."""
        self.transport = transport
        if not self.is_server:
            transport.write(PREFACE)
        settings = {
            frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            frames.INITIAL_WINDOW_SIZE: self.granted_window,
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
        self.flush_all()

    # Sending

    def write_frame(self, kind: int, flags: int, number: int, payload: bytes = b"") -> None:
        """Write a frame that flow control does not hold back."""
        self.transport.write(frame_head(kind, flags, number, len(payload)) + payload)

    def open_stream(self, stream: Stream) -> None:
        """Number a client's stream, before it sends."""
        stream.number = self.last_stream = self.last_stream + 2 if self.last_stream else 1
        self.add(stream)

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
                if size < min(len(payload), SMALL_FRAME_BYTES):
                    try:
                        self.count_glitch()
                    except ProtocolError as error:
                        self.transport.writelines(parts)
                        self.fail(error)
                        return
                if size >= SMALL_FRAME_BYTES:
                    self.calm(1)
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
            stream.known = True
            self.transport.writelines(parts)
        if ended:
            stream.local_open = False
            self.half_closed(stream)
        if not pending:
            stream.flushed()

    def leave(self) -> None:
        """Begin no more streams, and tell the other side."""
        if not self.leaving:
            self.leaving = True
            self.write_frame(GOAWAY, 0, 0, WORD.pack(self.last_stream) + WORD.pack(frames.NO_ERROR))

    def drop(self, stream: Stream) -> None:
        """Forget a stream."""
        if self.streams.pop(stream.number, None) is not None:
            self._over.append((stream.number, stream.was_reset))
        stream.close()

    def flush_all(self) -> None:
        for stream in [stream for stream in self.streams.values() if stream.pending]:
            self.flush(stream)

    def add(self, stream: Stream) -> None:
        stream.connection, stream.send_window, stream.receive_window = self, self._stream_window, self.granted_window
        self.streams[stream.number] = stream

    def half_closed(self, stream: Stream) -> None:
        """One side has ended. After both the stream is over; a client that still sends gets a reset."""
        if not stream.closed and not stream.local_open:
            self.calm(1)
            if not stream.remote_open:
                self.drop(stream)
            elif self.is_server:
                stream.reset(frames.NO_ERROR)

    def calm(self, glitches: int) -> None:
        """Time has passed, or a call ended normally: so many glitches are forgiven."""
        self._glitches = max(self._glitches - glitches, 0)

    def count_glitch(self) -> None:
        self._glitches += 1
        if self._glitches > MAX_GLITCHES:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def was_reset(self, number: int) -> bool | None:
        """Whether we reset a stream that is over; None for one that was never open."""
        return next((reset for each, reset in reversed(self._over) if each == number), None)

    def fail_stream(self, stream: Stream, code: int = PROTOCOL_ERROR) -> None:
        """The other side broke the protocol on one stream, which is reset and aborted."""
        stream.was_reset = True
        self.write_frame(frames.RST_STREAM, 0, stream.number, WORD.pack(code))
        self.drop(stream)
        stream.aborted(code)
        self.count_glitch()

    def refuse_stream(self, number: int, code: int) -> None:
        """Reset a stream that is not open."""
        self._over.append((number, True))
        self.reply(frames.RST_STREAM, 0, number, WORD.pack(code))
        self.count_glitch()

    def reply(self, kind: int, flags: int, number: int, payload: bytes = b"") -> None:
        """Write a frame that answers one of the other side's."""
        self._unread_replies = self._unread_replies + 1 if self._paused else 0
        if self._unread_replies > MAX_UNREAD_REPLIES:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "control frames whose answers are not read")
        self.write_frame(kind, flags, number, payload)

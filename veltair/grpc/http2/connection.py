"""One end of an HTTP/2 connection (RFC 9113) without TLS, as gRPC uses it: the frames that come."""

from __future__ import annotations

from collections.abc import Callable

from veltair.grpc.http2 import frames
from veltair.grpc.http2.frames import (
    ACK,
    CONNECTION_WINDOW_BYTES,
    DEFAULT_FRAME_BYTES,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    LARGEST_WINDOW_BYTES,
    MAX_STREAMS,
    PROTOCOL_ERROR,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    WORD,
    ProtocolError,
    check_size,
    parse_word,
)
from veltair.grpc.http2.header_blocks import HeaderBlockReader, check_priority
from veltair.grpc.http2.hpack import Field
from veltair.grpc.http2.request_fields import InvalidFieldsError, are_trailers, check_request
from veltair.grpc.http2.stream import Stream
from veltair.grpc.http2.stream_table import StreamTable


class Connection(StreamTable):
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
        super().__init__(accept)
        self._headers = HeaderBlockReader()
        self._settled = False  # the other side's first frame has come, which is of settings
        self._unacknowledged = 0  # bytes received since the last update of the connection's window

    def settings_received(self) -> None:
        """The other side's settings are in force. For subclasses."""

    def accept_data(self, number: int, size: int) -> Stream | None:
        if self._headers.unfinished_stream is not None or not self._settled or not 0 < number <= self.last_stream:
            raise ProtocolError(PROTOCOL_ERROR, f"data of stream {number}, which is not open")
        stream = self.streams.get(number)
        if stream is not None and not stream.remote_open:
            raise ProtocolError(frames.STREAM_CLOSED, f"data of stream {number} behind its end")
        if stream is None and self.is_server and not self.was_reset(number):
            self.refuse_stream(number, frames.STREAM_CLOSED)
        self._unacknowledged += size
        if self._unacknowledged > CONNECTION_WINDOW_BYTES // 2:
            self.write_frame(WINDOW_UPDATE, 0, 0, WORD.pack(self._unacknowledged))
            self._unacknowledged = 0
        if stream is not None:
            stream.count_data(size)
        return stream

    def end_of_stream(self, stream: Stream) -> None:
        if stream.closed:
            return
        if stream.announced is not None and stream.announced != stream.received:
            self.fail_stream(stream)
            return
        stream.remote_open = False
        stream.end_received()
        self.half_closed(stream)

    def handle_control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self._settled:
            if kind != SETTINGS or flags & ACK:
                raise ProtocolError(PROTOCOL_ERROR, "a frame before the settings")
            self._settled = True
        if number and kind in (SETTINGS, frames.PING, GOAWAY):
            raise ProtocolError(PROTOCOL_ERROR, f"a frame of the connection on stream {number}")
        unfinished = self._headers.unfinished_stream
        if unfinished is not None and (kind != frames.CONTINUATION or number != unfinished):
            raise ProtocolError(PROTOCOL_ERROR, "a header block that is cut off")
        if kind in (frames.HEADERS, frames.CONTINUATION):
            if kind == frames.CONTINUATION and unfinished is not None:
                self.count_glitch()
            if (block := self._headers.add(kind, flags, number, payload)) is not None:
                self._headers_received(number, *block)
        elif kind == WINDOW_UPDATE:
            self._grow_window(number, parse_word(payload) & LARGEST_WINDOW_BYTES)
        elif kind == frames.RST_STREAM:
            self._reset_received(number, parse_word(payload))
        elif kind == SETTINGS:
            self._settings_received(flags, payload)
        elif kind == frames.PING:
            check_size(payload, frames.PING_BYTES)
            if not flags & ACK:
                self.reply(frames.PING, ACK, 0, payload)
            self.count_glitch()
        elif kind == frames.PRIORITY:
            if not number:
                raise ProtocolError(PROTOCOL_ERROR, "a priority of no stream")
            check_size(payload, frames.PRIORITY_BYTES)
            check_priority(number, payload)
            self.count_glitch()
        elif kind == GOAWAY:
            self._goaway_received(parse_word(payload[:4]) & LARGEST_WINDOW_BYTES)
        elif kind == frames.PUSH_PROMISE:
            raise ProtocolError(PROTOCOL_ERROR, "a pushed response")
        else:
            self.count_glitch()

    def _headers_received(self, number: int, fields: list[Field] | None, ends_stream: bool) -> None:
        """`fields`: None for more than is accepted."""
        stream = self.streams.get(number)
        if stream is None and self._accept is not None:
            stream = self._request_received(number, fields)
        elif stream is not None:
            if not stream.remote_open:
                raise ProtocolError(frames.STREAM_CLOSED, f"headers of stream {number} behind its end")
            if fields is None:
                self.fail_stream(stream, frames.ENHANCE_YOUR_CALM)
                return
            if self.is_server and not (ends_stream and are_trailers(fields)):
                self.fail_stream(stream)
                return
        if stream is not None:
            if fields is None:
                stream.head_too_long()
            else:
                stream.headers_received(fields)
            if ends_stream:
                self.end_of_stream(stream)

    def _request_received(self, number: int, fields: list[Field] | None) -> Stream | None:
        """The head of a request on a stream that is not open. Returns its stream; None for one that is refused."""
        assert self._accept is not None
        if number <= self.last_stream:
            if was_reset := self.was_reset(number):
                return None  # trailers that were on their way
            code = PROTOCOL_ERROR if was_reset is None else frames.STREAM_CLOSED
            raise ProtocolError(code, f"headers of stream {number}, which is over")
        if not number % 2:
            raise ProtocolError(PROTOCOL_ERROR, f"stream {number} is the server's")
        self.last_stream = number
        try:
            announced = None if fields is None else check_request(fields)
        except InvalidFieldsError:
            self.refuse_stream(number, PROTOCOL_ERROR)
            return None
        if self.leaving or len(self.streams) >= MAX_STREAMS:
            self.refuse_stream(number, frames.REFUSED_STREAM)
            return None
        stream = self._accept()
        stream.number, stream.announced, stream.known = number, announced, True
        self.add(stream)
        return stream

    def _reset_received(self, number: int, code: int) -> None:
        if not 0 < number <= self.last_stream:
            raise ProtocolError(PROTOCOL_ERROR, f"stream {number} is not open")
        if (stream := self.streams.get(number)) is not None:
            self.drop(stream)
            stream.aborted(code)
        self.count_glitch()

    def _goaway_received(self, last: int) -> None:
        """The other side leaves; it has not processed our streams above `last`."""
        self.leaving = True
        if not self.is_server:
            for stream in [stream for number, stream in self.streams.items() if number > last]:
                self.drop(stream)
                stream.aborted(frames.REFUSED_STREAM)

    def _settings_received(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            if payload:
                raise ProtocolError(FRAME_SIZE_ERROR, "settings in an acknowledgement")
            return
        if len(payload) % SETTING.size:
            raise ProtocolError(FRAME_SIZE_ERROR, "settings of odd length")
        for key, value in SETTING.iter_unpack(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                if value > LARGEST_WINDOW_BYTES:
                    raise ProtocolError(FLOW_CONTROL_ERROR, "a window that is too large")
                for stream in self.streams.values():
                    stream.send_window += value - self._stream_window
                    if stream.send_window > LARGEST_WINDOW_BYTES:
                        raise ProtocolError(FLOW_CONTROL_ERROR, "a window that is too large")
                self._stream_window = value
            elif key == frames.MAX_FRAME_SIZE:
                if not DEFAULT_FRAME_BYTES <= value < 1 << 24:
                    raise ProtocolError(PROTOCOL_ERROR, f"frames of {value} bytes")
                self._frame_bytes = value
            elif key == frames.ENABLE_PUSH:
                if value > 1:
                    raise ProtocolError(PROTOCOL_ERROR, f"a setting of {value} for pushes")
            elif key == frames.MAX_CONCURRENT_STREAMS:
                self.max_streams = value
            self.count_glitch()
        self.reply(SETTINGS, ACK, 0)
        self.settings_received()
        self.flush_all()

    def _grow_window(self, number: int, size: int) -> None:
        if (not size and not number) or number > self.last_stream:
            raise ProtocolError(PROTOCOL_ERROR, f"the window of stream {number} cannot grow by {size}")
        stream = self.streams.get(number)
        if not size:  # of a stream, which is its alone (RFC 9113, 6.9)
            if stream is None:
                self.count_glitch()
            else:
                self.fail_stream(stream)
        elif number == 0:
            self._window += size
            if self._window > LARGEST_WINDOW_BYTES:
                raise ProtocolError(FLOW_CONTROL_ERROR, "a window that is too large")
            waiting, before = any(each.pending for each in self.streams.values()), self._window
            self.flush_all()
            if waiting and self._window == before and not self._paused:  # nothing was sent
                self.count_glitch()
        elif stream is not None:
            stream.send_window += size
            if stream.send_window > LARGEST_WINDOW_BYTES:
                self.fail_stream(stream, FLOW_CONTROL_ERROR)
                return
            self.flush(stream)

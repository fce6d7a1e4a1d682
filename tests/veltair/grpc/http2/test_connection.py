"""A server's connection against peers that cut, pad, hold back or break the protocol."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from echo_server import Service, run_with_server

from veltair.grpc.http2 import frames, hpack
from veltair.grpc.http2.connection import MAX_RESETS, Connection
from veltair.grpc.http2.stream import Stream
from veltair.grpc.server import Server

HEAD = [(":method", "POST"), (":scheme", "http"), (":path", "/t/echo"), ("content-type", "application/grpc")]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


REQUEST = frame(frames.HEADERS, frames.END_HEADERS, 1, hpack.encode(HEAD))
PADDED = frames.PADDED | frames.END_STREAM
BODY = frames.message_prefix(3) + b"abc"


def parse_frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Frames as (kind, flags, stream, payload)."""
    replies = []
    while len(data) >= 9:
        size = int.from_bytes(data[:3], "big")
        replies.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return replies


class MemoryTransport:
    """Collects what one end of a connection writes."""

    def __init__(self) -> None:
        self.written, self.closed = bytearray(), False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes | memoryview]) -> None:
        self.written += b"".join(parts)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class RecordingStream(Stream):
    """Records what it receives; as a server's stream it echoes the message."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.received: list[Any] = []

    def headers_received(self, fields: list[hpack.Field]) -> None:
        self.received.append(fields)

    def message_received(self, data: memoryview, *, compressed: bool) -> None:
        self.received.append(bytes(data))
        if self.connection.is_server:
            self.queue(frames.HEADERS, hpack.encode(STATUS))
            self.send(frames.DATA, frames.message_prefix(len(data)) + bytes(data), end=True)

    def message_too_large(self, size: int) -> None: ...

    def end_received(self) -> None:
        self.received.append("end")

    def aborted(self, code: int | None) -> None:
        self.received.append(("aborted", code))


STATUS = [(":status", "200")]


def deliver(sender: Connection, receiver: Connection, most: int) -> None:
    """Hand over what a connection has written, in reads of at most `most` bytes."""
    written = sender.transport.written  # type: ignore[attr-defined]
    while written:
        buffer = receiver.get_buffer(-1)
        size = min(len(buffer), most, len(written))
        buffer[:size] = written[:size]
        del written[:size]
        receiver.buffer_updated(size)


@pytest.mark.parametrize("most", [1, 1000, 1 << 20])
@pytest.mark.parametrize("size", [0, 100, 300_000])
def test_two_ends_in_memory(most: int, size: int) -> None:
    """The protocol needs neither sockets nor an event loop."""
    client, server = Connection(), Connection(RecordingStream)
    for end in (client, server):
        end.start(MemoryTransport())
    call, message = RecordingStream(), os.urandom(size)
    client.open_stream(call)
    call.queue(frames.HEADERS, hpack.encode(HEAD))
    call.send(frames.DATA, frames.message_prefix(size) + message, end=True)
    while client.transport.written or server.transport.written:  # type: ignore[attr-defined]
        deliver(client, server, most)
        deliver(server, client, most)
    assert call.received == [STATUS, message, "end"]
    assert not client.streams and not server.streams


def exchange(sent: bytes, enough: Callable[[list[Any]], bool], step: int = 1 << 20) -> list[Any]:
    """The frames that the server sends for these bytes, sent `step` at a time, until `enough` or it closes."""

    async def body(channel: Any, server: Server, service: Service, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in range(0, len(sent), step):
            writer.write(sent[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)
        data = b""
        while not enough(parse_frames(data)) and (part := await reader.read(1 << 16)):
            data += part
        writer.close()
        found.extend(parse_frames(data))

    found: list[Any] = []
    run_with_server(body)
    return found


def has_trailers(replies: list[Any]) -> bool:
    return any(kind == frames.HEADERS and flags & frames.END_STREAM for kind, flags, _, _ in replies)


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    "sent",
    [
        REQUEST + frame(frames.DATA, frames.END_STREAM, 1, BODY),
        REQUEST + frame(frames.DATA, PADDED, 1, b"\x04" + BODY + bytes(4)),
        REQUEST
        + b"".join(frame(frames.DATA, 0, 1, bytes([b])) for b in BODY)
        + frame(frames.DATA, frames.END_STREAM, 1),
        frame(
            frames.HEADERS,
            frames.PADDED | frames.HAS_PRIORITY,
            1,
            b"\x02" + bytes(5) + hpack.encode(HEAD[:2]) + b"\0\0",
        )
        + frame(frames.CONTINUATION, frames.END_HEADERS, 1, hpack.encode(HEAD[2:]))
        + frame(0x77, 0, 1, b"an unknown frame")
        + frame(frames.DATA, frames.END_STREAM, 1, BODY),
    ],
)
def test_frames_however_they_are_cut(sent: bytes, step: int) -> None:
    replies = exchange(frames.PREFACE + frame(frames.SETTINGS, 0, 0) + sent, has_trailers, step)
    assert b"".join(payload for kind, _, _, payload in replies if kind == frames.DATA) == BODY
    (trailers,) = [
        payload for kind, flags, _, payload in replies if kind == frames.HEADERS and flags & frames.END_STREAM
    ]
    assert hpack.Decoder().decode(trailers) == [("grpc-status", "0")]


def test_answers_wait_for_the_clients_windows() -> None:
    small = struct.pack(">HI", 4, 2)
    begin = (
        frames.PREFACE + frame(frames.SETTINGS, 0, 0, small) + REQUEST + frame(frames.DATA, frames.END_STREAM, 1, BODY)
    )

    def data(replies: list[Any]) -> bytes:
        return b"".join(payload for kind, _, _, payload in replies if kind == frames.DATA)

    replies = exchange(begin + frame(frames.PING, 0, 0, bytes(8)), lambda f: any(k == frames.PING for k, *_ in f))
    assert data(replies) == BODY[:2] and not has_trailers(replies)
    more = frame(frames.WINDOW_UPDATE, 0, 1, struct.pack(">I", 3)) + frame(
        frames.SETTINGS, 0, 0, struct.pack(">HI", 4, 100)
    )
    assert data(exchange(begin + more, has_trailers)) == BODY


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", frames.PROTOCOL_ERROR),
        (frame(frames.DATA, 0, 1, b"a"), frames.PROTOCOL_ERROR),
        (frame(frames.DATA, 0, 0, b"a"), frames.PROTOCOL_ERROR),
        (REQUEST + frame(frames.DATA, frames.PADDED, 1, b"\x09abc"), frames.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 2, hpack.encode(HEAD)), frames.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 0, 1, b"") + frame(frames.PING, 0, 0, bytes(8)), frames.PROTOCOL_ERROR),
        (frame(frames.CONTINUATION, 0, 1, b""), frames.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 0, 1, bytes(9000)) * 2, frames.ENHANCE_YOUR_CALM),
        (frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff"), frames.COMPRESSION_ERROR),
        (frame(frames.PING, 0, 0, bytes(1 << 15)), frames.FRAME_SIZE_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"\0"), frames.FRAME_SIZE_ERROR),
        (frame(frames.RST_STREAM, 0, 1, bytes(4)), frames.PROTOCOL_ERROR),
        (
            b"".join(
                frame(frames.HEADERS, frames.END_HEADERS, stream, hpack.encode(HEAD))
                + frame(frames.RST_STREAM, 0, stream, bytes(4))
                for stream in range(1, 2 * MAX_RESETS + 2, 2)
            ),
            frames.ENHANCE_YOUR_CALM,
        ),
        (frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)), frames.PROTOCOL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), frames.FLOW_CONTROL_ERROR),
        (frame(frames.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)), frames.FLOW_CONTROL_ERROR),
        (frame(frames.SETTINGS, 0, 0, struct.pack(">HI", 5, 1)), frames.PROTOCOL_ERROR),
        (frame(frames.SETTINGS, 0, 0, b"abc"), frames.FRAME_SIZE_ERROR),
        (frame(frames.PUSH_PROMISE, 0, 1), frames.PROTOCOL_ERROR),
        (
            REQUEST.replace(b"/t/echo", b"/t/idle")
            + frame(frames.DATA, 0, 1, frames.message_prefix((1 << 20) - 5) + bytes((1 << 20) - 5)) * 8
            + frame(frames.DATA, 0, 1, b"\0"),
            frames.FLOW_CONTROL_ERROR,
        ),
    ],
)
def test_a_peer_that_breaks_the_protocol_gets_the_error_and_is_cut_off(sent: bytes, code: int) -> None:
    preface = b"" if sent.startswith(b"GET") else frames.PREFACE
    replies = exchange(preface + sent, lambda replies: False)
    (goodbye,) = [payload for kind, _, _, payload in replies if kind == frames.GOAWAY]
    assert int.from_bytes(goodbye[4:8], "big") == code


def test_requests_that_are_not_grpc() -> None:
    for fields, expected in (
        ([(":method", "GET"), *HEAD[1:]], (":status", "415")),
        ([*HEAD, ("grpc-timeout", "12x")], ("grpc-status", str(grpc.StatusCode.INTERNAL.value[0]))),
    ):
        sent = frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, hpack.encode(fields))
        replies = exchange(frames.PREFACE + sent, has_trailers)
        (head,) = [payload for kind, _, _, payload in replies if kind == frames.HEADERS]
        assert expected in hpack.Decoder().decode(head)

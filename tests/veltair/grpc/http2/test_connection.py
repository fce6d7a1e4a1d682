"""A server's connection against peers that cut, pad, hold back or break the protocol."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from echo_server import Service, run_with_server

from veltair.grpc.http2 import frames, hpack
from veltair.grpc.http2.connection import MAX_RESETS
from veltair.grpc.server import Server

HEAD = [(":method", "POST"), (":scheme", "http"), (":path", "/t/echo"), ("content-type", "application/grpc")]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


REQUEST = frame(frames.HEADERS, frames.END_HEADERS, 1, hpack.encode(HEAD))
PADDED = frames.PADDED | frames.END_STREAM
BODY = frames.message_prefix(3) + b"abc"


def whole(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Frames as (kind, flags, stream, payload)."""
    replies = []
    while len(data) >= 9:
        size = int.from_bytes(data[:3], "big")
        replies.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return replies


def spoken(sent: bytes, enough: Callable[[list[Any]], bool], step: int = 1 << 20) -> list[Any]:
    """The replies that answer these bytes, sent `step` at a time, until there are enough or the server closed."""

    async def body(channel: Any, server: Server, service: Service, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in range(0, len(sent), step):
            writer.write(sent[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)
        data = b""
        while not enough(whole(data)) and (part := await reader.read(1 << 16)):
            data += part
        writer.close()
        found.extend(whole(data))

    found: list[Any] = []
    run_with_server(body)
    return found


def answered(replies: list[Any]) -> bool:
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
    replies = spoken(frames.PREFACE + frame(frames.SETTINGS, 0, 0) + sent, answered, step)
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

    replies = spoken(begin + frame(frames.PING, 0, 0, bytes(8)), lambda f: any(k == frames.PING for k, *_ in f))
    assert data(replies) == BODY[:2] and not answered(replies)
    more = frame(frames.WINDOW_UPDATE, 0, 1, struct.pack(">I", 3)) + frame(
        frames.SETTINGS, 0, 0, struct.pack(">HI", 4, 100)
    )
    assert data(spoken(begin + more, answered)) == BODY


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
def test_who_breaks_the_protocol_is_told_and_cut_off(sent: bytes, code: int) -> None:
    preface = b"" if sent.startswith(b"GET") else frames.PREFACE
    replies = spoken(preface + sent, lambda replies: False)
    (goodbye,) = [payload for kind, _, _, payload in replies if kind == frames.GOAWAY]
    assert int.from_bytes(goodbye[4:8], "big") == code


def test_requests_that_are_not_grpc() -> None:
    for fields, expected in (
        ([(":method", "GET"), *HEAD[1:]], (":status", "415")),
        ([*HEAD, ("grpc-timeout", "12x")], ("grpc-status", str(grpc.StatusCode.INTERNAL.value[0]))),
    ):
        sent = frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, hpack.encode(fields))
        replies = spoken(frames.PREFACE + sent, answered)
        (head,) = [payload for kind, _, _, payload in replies if kind == frames.HEADERS]
        assert expected in hpack.Decoder().decode(head)

"""A connection against peers that cut, pad, hold back or break the protocol: in Python and in C."""

from __future__ import annotations

import os
import struct
from typing import Any, TypeAlias

import pytest
from http2_ends import LOST, Call, End, Event, PythonEnd
from native_end import NativeEnd
from wire_frames import frame, parse_frames, setting, word

from veltair.grpc.http2 import frames, hpack
from veltair.grpc.http2.stream_table import MAX_GLITCHES, MAX_UNREAD_REPLIES

Implementation: TypeAlias = type[PythonEnd] | type[NativeEnd]

HEAD = [(":method", "POST"), (":scheme", "http"), (":path", "/t/echo"), ("content-type", "application/grpc")]
STATUS, TRAILERS = [(":status", "200")], [("grpc-status", "0")]


@pytest.fixture(params=[PythonEnd, NativeEnd], ids=["python", "native"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    found: Implementation = request.param
    return found


REQUEST = frame(frames.HEADERS, frames.END_HEADERS, 1, hpack.encode(HEAD))
PADDED = frames.PADDED | frames.END_STREAM
BODY = frames.message_prefix(3) + b"abc"
BEGIN = frames.PREFACE + frame(frames.SETTINGS, 0, 0)


def echo(call: Call, event: Event) -> None:
    if event[0] == "message":
        call.headers(STATUS)
        call.data(frames.message_prefix(len(event[1])) + event[1])
        call.headers(TRAILERS, end=True)


def ignore(call: Call, event: Event) -> None: ...


def exchange(implementation: Implementation, sent: bytes, step: int = 1 << 20) -> list[Any]:
    """The frames that an echoing server sends for these bytes, read `step` at a time."""
    server = implementation(True, echo)
    server.feed(sent, step)
    return parse_frames(server.take())


def run(*ends: End, most: int = 1 << 20) -> None:
    """Hand over what two ends send, in reads of at most `most` bytes, until none sends any more."""
    one, other = ends
    quiet = False
    while not quiet:
        sent, answered = one.take(), other.take()
        quiet = not sent and not answered
        other.feed(sent, most)
        one.feed(answered, most)


def content(call: Call) -> list[Event]:
    return [event for event in call.events if event[0] != "flushed"]


@pytest.mark.parametrize("most", [1, 1000, 1 << 20])
@pytest.mark.parametrize("size", [0, 100, 300_000])
def test_two_ends_in_memory(implementation: Implementation, most: int, size: int) -> None:
    """The protocol needs neither sockets nor an event loop."""
    client, server = implementation(False, ignore), implementation(True, echo)
    call, message = client.open(), os.urandom(size)
    call.headers(HEAD)
    call.data(frames.message_prefix(size) + message, end=True)
    run(client, server, most=most)
    answer = [("headers", STATUS), ("message", message, False), ("headers", TRAILERS), ("end",), ("closed",)]
    assert content(call) == answer
    assert client.ready == server.ready == 1
    assert not client.streams and not server.streams


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
def test_frames_however_they_are_cut(implementation: Implementation, sent: bytes, step: int) -> None:
    replies = exchange(implementation, BEGIN + sent, step)
    assert b"".join(payload for kind, _, _, payload in replies if kind == frames.DATA) == BODY
    (trailers,) = [
        payload for kind, flags, _, payload in replies if kind == frames.HEADERS and flags & frames.END_STREAM
    ]
    assert hpack.Decoder().decode(trailers) == [("grpc-status", "0")]


def test_answers_wait_for_the_clients_windows(implementation: Implementation) -> None:
    def data(replies: list[Any]) -> bytes:
        return b"".join(payload for kind, _, _, payload in replies if kind == frames.DATA)

    server = implementation(True, echo)
    server.feed(frames.PREFACE + setting(frames.INITIAL_WINDOW_SIZE, 2) + REQUEST + frame(frames.DATA, 1, 1, BODY))
    replies = parse_frames(server.take())
    assert data(replies) == BODY[:2] and not has_trailers(replies)
    server.feed(word(frames.WINDOW_UPDATE, 1, 3))
    assert data(parse_frames(server.take())) == BODY[2:5]
    server.feed(setting(frames.INITIAL_WINDOW_SIZE, 100))
    replies = parse_frames(server.take())
    assert data(replies) == BODY[5:] and has_trailers(replies)
    assert not server.streams


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
        (frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 0, 1, bytes(9000)) * 8, frames.ENHANCE_YOUR_CALM),
        (frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff"), frames.COMPRESSION_ERROR),
        (frame(frames.PING, 0, 0, bytes(1 << 15)), frames.FRAME_SIZE_ERROR),
        (frame(frames.PING, 0, 0, bytes(7)), frames.FRAME_SIZE_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"\0"), frames.FRAME_SIZE_ERROR),
        (frame(frames.RST_STREAM, 0, 1, bytes(4)), frames.PROTOCOL_ERROR),
        (
            b"".join(
                frame(frames.HEADERS, frames.END_HEADERS, stream, hpack.encode(HEAD))
                + frame(frames.RST_STREAM, 0, stream, bytes(4))
                for stream in range(1, 2 * MAX_GLITCHES + 2, 2)
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
def test_a_peer_that_breaks_the_protocol_gets_the_error_and_is_cut_off(
    implementation: Implementation, sent: bytes, code: int
) -> None:
    server = implementation(True, hold if b"/t/idle" in sent else echo)
    server.feed((b"" if sent.startswith(b"GET") else BEGIN) + sent)
    (goodbye,) = [payload for kind, _, _, payload in parse_frames(server.take()) if kind == frames.GOAWAY]
    assert int.from_bytes(goodbye[4:8], "big") == code
    assert server.failed and server.leaving and not server.streams
    assert server.take() == b""


def hold(call: Call, event: Event) -> None:
    if event[0] == "headers":
        call.hold(True)


def test_a_reader_that_takes_its_time_holds_the_window(implementation: Implementation) -> None:
    part = frame(frames.DATA, 0, 1, frames.message_prefix(8000 - 5) + bytes(8000 - 5))
    server = implementation(True, hold)
    server.feed(BEGIN + REQUEST)
    server.take()
    server.feed(part * 6)
    assert server.take() == b""
    server.calls[0].hold(False)
    assert server.take() == word(frames.WINDOW_UPDATE, 1, 6 * 8000)
    server.feed(part * 5)
    assert server.take() == word(frames.WINDOW_UPDATE, 1, 5 * 8000)


def test_the_rest_of_a_large_message_may_come_once_it_has_begun(implementation: Implementation) -> None:
    data = frames.message_prefix(1_000_000) + bytes(1_000_000)
    server = implementation(True, ignore)
    server.feed(BEGIN + REQUEST + frame(frames.DATA, 0, 1, data[:60_000]))
    assert server.take().endswith(word(frames.WINDOW_UPDATE, 1, len(data)))
    server.feed(frame(frames.DATA, 0, 1, data[60_000:-1]) + frame(frames.DATA, 1, 1, data[-1:]))
    assert server.take() == b"" and server.calls[0].of_kind("message") == [bytes(1_000_000)]


def test_a_message_that_is_too_large_is_announced_once(implementation: Implementation) -> None:
    server = implementation(True, ignore, 3)
    announced = frames.message_prefix(4) + b"abcd" + BODY
    server.feed(BEGIN + REQUEST + frame(frames.DATA, frames.END_STREAM, 1, announced), 1)
    assert content(server.calls[0]) == [("headers", HEAD), ("too_large", 4), ("end",)]
    server.calls[0].headers(TRAILERS, end=True)
    assert server.calls[0].closed


def test_an_answer_ahead_of_the_requests_end_resets_the_client(implementation: Implementation) -> None:
    server = implementation(True, echo)
    server.feed(BEGIN + REQUEST + frame(frames.DATA, 0, 1, BODY))
    assert parse_frames(server.take())[-1] == (frames.RST_STREAM, 0, 1, struct.pack(">I", frames.NO_ERROR))
    server.feed(frame(frames.DATA, frames.END_STREAM, 1, BODY))  # which crossed the answer
    assert content(server.calls[0]) == [("headers", HEAD), ("message", b"abc", False), ("closed",)]
    assert not server.failed


def test_streams_end_with_the_connection_or_by_a_reset(implementation: Implementation) -> None:
    client, server = implementation(False, ignore), implementation(True, ignore)
    calls = [client.open() for _ in range(3)]
    for call in calls:
        call.headers(HEAD)
    run(client, server)
    calls[0].reset(frames.CANCEL)
    calls[0].headers(HEAD)
    run(client, server)
    assert [call.of_kind("aborted") for call in server.calls] == [[frames.CANCEL], [], []]
    client.feed(frame(frames.GOAWAY, 0, 0, struct.pack(">II", 3, 0)))
    client.lose()
    server.lose()
    assert [call.of_kind("aborted") for call in calls] == [[], [LOST], [frames.REFUSED_STREAM]]
    assert [call.of_kind("aborted") for call in server.calls] == [[frames.CANCEL], [LOST], [LOST]]
    assert all(call.events[-1] == ("closed",) for call in calls + server.calls)


def test_no_streams_begin_once_one_side_leaves(implementation: Implementation) -> None:
    server = implementation(True, echo)
    server.feed(BEGIN + REQUEST)
    server.take()
    server.leave()
    server.leave()
    assert server.take() == frame(frames.GOAWAY, 0, 0, struct.pack(">II", 1, 0))
    server.feed(frame(frames.HEADERS, frames.END_HEADERS, 3, hpack.encode(HEAD)))
    assert server.take() == word(frames.RST_STREAM, 3, frames.REFUSED_STREAM)
    server.feed(frame(frames.DATA, frames.END_STREAM, 1, BODY))
    assert has_trailers(parse_frames(server.take()))


def test_streams_beyond_the_limit_are_refused(implementation: Implementation) -> None:
    server, block = implementation(True, ignore), hpack.encode(HEAD)
    server.feed(BEGIN)
    server.take()
    numbers = range(1, 2 * frames.MAX_STREAMS + 2, 2)
    server.feed(b"".join(frame(frames.HEADERS, frames.END_HEADERS, number, block) for number in numbers))
    assert server.take() == word(frames.RST_STREAM, numbers[-1], frames.REFUSED_STREAM)
    assert server.streams == len(server.calls) == frames.MAX_STREAMS


def test_data_waits_until_the_output_is_taken(implementation: Implementation) -> None:
    """Only so much is kept for a client that does not read; its control frames are answered, up to a limit."""
    message = frames.message_prefix(800_000) + os.urandom(800_000)
    limit = 1 << 20

    def answer(call: Call, event: Event) -> None:
        if event == ("headers", HEAD):
            call.headers(STATUS)
            call.data(message)
            call.headers(TRAILERS, end=True)

    server = implementation(True, answer)
    windows = setting(frames.INITIAL_WINDOW_SIZE, 1 << 30) + word(frames.WINDOW_UPDATE, 0, 1 << 30)
    server.feed(frames.PREFACE + windows)
    block = hpack.encode(HEAD)
    flags = frames.END_HEADERS | frames.END_STREAM
    server.feed(b"".join(frame(frames.HEADERS, flags, number, block) for number in (1, 3, 5)))
    assert server.streams == 2  # the first one is over; the second fills the output
    sent = b""
    while part := server.take(limit // 4):
        sent += part
    replies = parse_frames(sent)
    assert not server.streams
    for number in (1, 3, 5):
        found = [payload for kind, _, stream, payload in replies if kind == frames.DATA and stream == number]
        assert b"".join(found) == message

    for number in (7, 9):
        server.feed(frame(frames.HEADERS, flags, number, block))
    server.feed(frame(frames.PING, 0, 0, bytes(8)) * MAX_UNREAD_REPLIES)
    assert not server.failed
    server.feed(frame(frames.PING, 0, 0, bytes(8)))
    assert server.failed
    assert parse_frames(server.take())[-1][0] == frames.GOAWAY

"""What the protocol forbids a client, and what costs a server more than the client: bounded, in Python and in C.

The rows of the attacks have the numbers of their publications (CVE-…): data dribble, floods of pings, settings, resets,
headers, empty frames and priorities, rapid reset, streams that the server is made to reset, floods of continuations.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import pytest
from call_frames import BEGIN, BODY, HEAD, LAST, echo, goodbyes, head, resets
from http2_ends import Call, Event, PythonEnd
from native_end import NativeEnd
from wire_frames import frame, setting, word

from veltair.grpc.http2 import frames, hpack
from veltair.grpc.http2.stream_table import MAX_GLITCHES, REMEMBERED

Implementation: TypeAlias = type[PythonEnd] | type[NativeEnd]


@pytest.fixture(params=[PythonEnd, NativeEnd], ids=["python", "native"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    found: Implementation = request.param
    return found


def answer_early(call: Call, event: Event) -> None:
    if event[0] == "message":
        call.headers([(":status", "200")])
        call.headers([("grpc-status", "0")], end=True)


def ignore(call: Call, event: Event) -> None: ...


PRIORITY = struct.pack(">IB", 1, 16)
FORBIDDEN = {
    "data before settings": (frames.PREFACE + frame(frames.DATA, 0, 1, b"a"), frames.PROTOCOL_ERROR),
    "headers before settings": (frames.PREFACE + head(1), frames.PROTOCOL_ERROR),
    "an acknowledgement before settings": (frames.PREFACE + frame(frames.SETTINGS, 1, 0), frames.PROTOCOL_ERROR),
    "settings on a stream": (BEGIN + frame(frames.SETTINGS, 0, 1), frames.PROTOCOL_ERROR),
    "settings in an acknowledgement": (BEGIN + frame(frames.SETTINGS, 1, 0, bytes(6)), frames.FRAME_SIZE_ERROR),
    "a push setting of 2": (BEGIN + setting(frames.ENABLE_PUSH, 2), frames.PROTOCOL_ERROR),
    "a ping on a stream": (BEGIN + head(1) + frame(frames.PING, 0, 1, bytes(8)), frames.PROTOCOL_ERROR),
    "a ping of 6 bytes": (BEGIN + frame(frames.PING, 0, 0, bytes(6)), frames.FRAME_SIZE_ERROR),
    "a pong of 6 bytes": (BEGIN + frame(frames.PING, 1, 0, bytes(6)), frames.FRAME_SIZE_ERROR),
    "a goodbye on a stream": (BEGIN + head(1) + frame(frames.GOAWAY, 0, 1, bytes(8)), frames.PROTOCOL_ERROR),
    "headers of no stream": (BEGIN + head(0), frames.PROTOCOL_ERROR),
    "a priority of no stream": (BEGIN + frame(frames.PRIORITY, 0, 0, PRIORITY), frames.PROTOCOL_ERROR),
    "a priority of 4 bytes": (BEGIN + frame(frames.PRIORITY, 0, 1, bytes(4)), frames.FRAME_SIZE_ERROR),
    "a stream that depends on itself": (BEGIN + frame(frames.PRIORITY, 0, 1, PRIORITY), frames.PROTOCOL_ERROR),
    "headers that depend on themselves": (
        BEGIN + frame(frames.HEADERS, 0x24, 1, PRIORITY + hpack.encode(HEAD)),
        frames.PROTOCOL_ERROR,
    ),
    "padded data without a byte": (BEGIN + head(1) + frame(frames.DATA, frames.PADDED, 1), frames.FRAME_SIZE_ERROR),
    "a window of the connection that grows by nothing": (
        BEGIN + head(1) + word(frames.WINDOW_UPDATE, 0, 0),
        frames.PROTOCOL_ERROR,
    ),
    "data behind the end": (BEGIN + head(1, flags=LAST) + frame(frames.DATA, 0, 1, b"a"), frames.STREAM_CLOSED),
    "headers behind the end": (BEGIN + head(1, flags=LAST) + head(1), frames.STREAM_CLOSED),
    "headers of a stream that was left out": (BEGIN + head(5) + head(3), frames.PROTOCOL_ERROR),
    "headers of a stream that is over": (
        BEGIN + head(1) + frame(frames.DATA, 1, 1, BODY) + head(1),
        frames.STREAM_CLOSED,
    ),
    "settings that take the window of a stream beyond its size": (
        BEGIN + head(1) + word(frames.WINDOW_UPDATE, 1, 5) + setting(frames.INITIAL_WINDOW_SIZE, 2**31 - 1),
        frames.FLOW_CONTROL_ERROR,
    ),
}


@pytest.mark.parametrize(("sent", "code"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_ends_the_connection(implementation: Implementation, sent: bytes, code: int) -> None:
    server = implementation(True, echo if BODY in sent else ignore)
    server.feed(sent)
    assert goodbyes(server.take()) == [code]
    assert server.failed and not server.streams


INVALID_BEHIND_A_HEAD = {
    "a pseudo-header behind others": [(":authority", "a")],
    "capital letters": [("Name", "a")],
    "a space in a name": [("a b", "a")],
    "a colon in a name": [("a:b", "a")],
    "no name": [("", "a")],
    "a line's end in a value": [("a", "b\r\nc: d")],
    "a zero byte in a value": [("a", "b\0")],
    "connection": [("connection", "close")],
    "upgrade": [("upgrade", "h2c")],
    "transfer-encoding": [("transfer-encoding", "chunked")],
    "te beyond trailers": [("te", "gzip")],
    "a length that is no number": [("content-length", "+5")],
    "two lengths": [("content-length", "5"), ("content-length", "6")],
    "two hosts": [("host", "a"), ("host", "a")],
    "a host with a user": [("host", "user@a")],
}
INVALID = {
    "no method": HEAD[1:],
    "no scheme": [HEAD[0], *HEAD[2:]],
    "no path": [*HEAD[:2], *HEAD[3:]],
    "an empty path": [*HEAD[:2], (":path", ""), *HEAD[3:]],
    "a path twice": [*HEAD[:3], (":path", "/"), *HEAD[3:]],
    "a status": [*HEAD[:3], (":status", "200"), *HEAD[3:]],
    "an authority with a user": [*HEAD[:3], (":authority", "user@a"), *HEAD[3:]],
    "a zero byte in the path": [*HEAD[:2], (":path", "/\0"), *HEAD[3:]],
} | {name: [*HEAD, *fields] for name, fields in INVALID_BEHIND_A_HEAD.items()}


@pytest.mark.parametrize("fields", INVALID.values(), ids=INVALID)
def test_heads_that_are_refused(implementation: Implementation, fields: list[hpack.Field]) -> None:
    server = implementation(True, echo)
    server.feed(BEGIN + head(1, fields=fields) + frame(frames.DATA, 1, 1, BODY) + head(3) + frame(0, 1, 3, BODY))
    sent = server.take()
    assert resets(sent) == [(1, frames.PROTOCOL_ERROR)] and not goodbyes(sent)
    assert [call.number for call in server.calls] == [3]
    assert not server.failed


@pytest.mark.parametrize("authority", [None, "a", "A:1"])
@pytest.mark.parametrize("host", [None, "a", "a:1"])
def test_a_host_is_the_authority(implementation: Implementation, authority: str | None, host: str | None) -> None:
    """RFC 9113, section 8.3.1."""
    plain = [field for field in HEAD if field[0] != ":authority"]
    named = [] if authority is None else [(":authority", authority)]
    fields = [*named, *plain, *([] if host is None else [("host", host)])]
    server = implementation(True, echo)
    server.feed(BEGIN + head(1, fields=fields) + frame(frames.DATA, 1, 1, BODY))
    agree = authority is None or host is None or authority.lower() == host
    assert resets(server.take()) == ([] if agree else [(1, frames.PROTOCOL_ERROR)])
    assert len(server.calls) == agree


@pytest.mark.parametrize(
    ("rest", "ok"),
    [
        (frame(frames.DATA, frames.END_STREAM, 1, BODY), True),
        (frame(frames.DATA, frames.PADDED | frames.END_STREAM, 1, b"\x02" + BODY + bytes(2)), True),
        (frame(frames.DATA, 0, 1, BODY[:2]) + frame(frames.DATA, 1, 1, BODY[2:]), True),
        (frame(frames.DATA, frames.END_STREAM, 1, BODY[:-1]), False),
        (frame(frames.DATA, 0, 1, BODY + b"\0") + frame(frames.DATA, 1, 1), False),
        (frame(frames.DATA, 0, 1, BODY[:-1]) + head(1, fields=[("a", "b")], flags=LAST), False),
    ],
)
def test_content_length_is_what_comes(implementation: Implementation, rest: bytes, ok: bool) -> None:
    server = implementation(True, ignore)
    server.feed(BEGIN + head(1, ("content-length", "8")) + rest)
    (call,) = server.calls
    assert call.closed is not ok
    assert resets(server.take()) == ([] if ok else [(1, frames.PROTOCOL_ERROR)])
    assert call.of_kind("aborted") == ([] if ok else [frames.PROTOCOL_ERROR])


def test_more_than_the_content_length_ends_the_stream_at_once(implementation: Implementation) -> None:
    server = implementation(True, ignore)
    long = frames.message_prefix(30_000) + bytes(100)  # the rest of the message is not waited for
    server.feed(BEGIN + head(1, ("content-length", "50")) + frame(frames.DATA, 0, 1, long) + head(3))
    assert resets(server.take()) == [(1, frames.PROTOCOL_ERROR)]
    assert [call.closed for call in server.calls] == [True, False] and not server.failed


@pytest.mark.parametrize("trailers", [head(1, fields=[("a", "b")]), head(1, flags=LAST), head(1, flags=0x5)])
def test_trailers_end_the_stream_and_have_no_pseudo_headers(implementation: Implementation, trailers: bytes) -> None:
    server = implementation(True, ignore)
    server.feed(BEGIN + head(1) + trailers)
    assert resets(server.take()) == [(1, frames.PROTOCOL_ERROR)]
    assert server.calls[0].of_kind("aborted") == [frames.PROTOCOL_ERROR]


def test_late_frames_of_a_stream_that_we_reset_are_ignored(implementation: Implementation) -> None:
    server = implementation(True, answer_early)
    server.feed(BEGIN + head(1) + frame(frames.DATA, 0, 1, BODY))
    server.take()
    late = frame(frames.DATA, 0, 1, bytes(100)) + head(1, fields=[("a", "b")], flags=LAST)
    server.feed(late + word(frames.WINDOW_UPDATE, 1, 5) + word(frames.RST_STREAM, 1, 0))
    assert server.take() == b"" and not server.failed


def test_data_of_a_stream_that_ended_is_refused_once(implementation: Implementation) -> None:
    server = implementation(True, echo)
    server.feed(BEGIN + head(1) + frame(frames.DATA, 1, 1, BODY))
    server.take()
    server.feed(frame(frames.DATA, 0, 1, bytes(100)) * 3)
    assert resets(server.take()) == [(1, frames.STREAM_CLOSED)] and not server.failed


def test_a_client_resets_no_stream_that_the_server_never_saw(implementation: Implementation) -> None:
    client = implementation(False, ignore)
    client.take()
    call = client.open()
    call.reset(frames.CANCEL)
    assert client.take() == b"" and call.closed
    seen = client.open()
    seen.headers(HEAD)
    seen.reset(frames.CANCEL)
    assert resets(client.take()) == [(seen.number, frames.CANCEL)]


def cycle(first: int, parts: list[bytes]) -> bytes:
    """For each of many streams a head and what follows it."""
    numbers = range(first, first + 2 * MAX_GLITCHES + 2, 2)
    numbered = ((head(number), struct.pack(">I", number)) for number in numbers)
    return b"".join(begin + b"".join(part.replace(b"NNNN", number) for part in parts) for begin, number in numbered)


def on_each(kind: int, flags: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + b"NNNN" + payload


FLOODS = {
    "2019-9511 data dribble": setting(frames.INITIAL_WINDOW_SIZE, 0)
    + head(1)
    + frame(frames.DATA, 1, 1, frames.message_prefix(5000) + bytes(5000))
    + word(frames.WINDOW_UPDATE, 1, 1) * (MAX_GLITCHES + 10),
    "2019-9511 windows that let nothing through": setting(frames.INITIAL_WINDOW_SIZE, 0)
    + head(1)
    + frame(frames.DATA, 1, 1, BODY)
    + word(frames.WINDOW_UPDATE, 0, 1) * (MAX_GLITCHES + 1),
    "2019-9512 pings": frame(frames.PING, 0, 0, bytes(8)) * (MAX_GLITCHES + 1),
    "2019-9512 pongs": frame(frames.PING, 1, 0, bytes(8)) * (MAX_GLITCHES + 1),
    "2019-9513 priorities": head(1) + frame(frames.PRIORITY, 0, 1, bytes(5)) * (MAX_GLITCHES + 1),
    "2019-9514 resets": cycle(1, [on_each(frames.RST_STREAM, 0, bytes(4))]),
    "2019-9515 settings": frame(frames.SETTINGS, 0, 0, bytes(6)) * (MAX_GLITCHES + 1),
    "2019-9515 settings in one frame": frame(frames.SETTINGS, 0, 0, bytes(6) * (MAX_GLITCHES + 1)),
    "2019-9516 heads without names": b"".join(
        frame(frames.HEADERS, frames.END_HEADERS, number, b"\x00\x00\x00")
        for number in range(1, 2 * MAX_GLITCHES + 3, 2)
    ),
    "2019-9518 empty data": head(1) + frame(frames.DATA, 0, 1) * (MAX_GLITCHES + 1),
    "2019-9518 empty padded data": head(1) + frame(frames.DATA, 8, 1, b"\3abc") * (MAX_GLITCHES + 1),
    "2024-27316 empty continuations": frame(frames.HEADERS, 0, 1)
    + frame(frames.CONTINUATION, 0, 1) * (MAX_GLITCHES + 1),
    "2023-44487 rapid reset": cycle(1, [on_each(frames.DATA, 0, b"\0"), on_each(frames.RST_STREAM, 0, bytes(4))]),
    "2025-8671 the server is made to reset": cycle(1, [on_each(frames.HEADERS, 4, b"")]),
    "2025-8671 by a length": b"".join(
        head(number, ("content-length", "1")) + frame(frames.DATA, 1, number, b"ab")
        for number in range(1, 2 * MAX_GLITCHES + 3, 2)
    ),
    "unknown frames": frame(0x77, 0, 0) * (MAX_GLITCHES + 1),
    "resets of what is over": head(1) + frame(frames.RST_STREAM, 0, 1, bytes(4)) * (MAX_GLITCHES + 1),
}


@pytest.mark.parametrize("sent", FLOODS.values(), ids=FLOODS)
def test_floods_are_cut_off(implementation: Implementation, sent: bytes) -> None:
    server = implementation(True, echo)
    server.feed(BEGIN + sent)
    assert goodbyes(server.take()) == [frames.ENHANCE_YOUR_CALM]
    assert server.failed and not server.streams
    assert all(call.closed for call in server.calls)


def test_a_flood_of_data_ends_at_the_window(implementation: Implementation) -> None:
    """2019-9517: an answer that is not read waits, and the output is bounded."""

    def answer(call: Call, event: Event) -> None:
        if event[0] == "headers":
            call.data(bytes(3 << 20), end=True)

    server = implementation(True, answer)
    server.feed(BEGIN + setting(frames.INITIAL_WINDOW_SIZE, 1 << 30) + word(frames.WINDOW_UPDATE, 0, 1 << 30))
    server.feed(b"".join(head(number, flags=LAST) for number in range(1, 41, 2)))
    assert len(server.take()) < 5 << 20


def test_calls_that_end_normally_make_up_for_glitches(implementation: Implementation) -> None:
    server = implementation(True, echo)
    server.feed(BEGIN)
    for number in range(1, 4 * MAX_GLITCHES, 2):
        server.feed(frame(frames.PING, 0, 0, bytes(8)) + head(number) + frame(frames.DATA, 1, number, BODY))
        server.take()
    assert not server.failed


def test_time_makes_up_for_glitches(implementation: Implementation) -> None:
    server = implementation(True, echo)
    server.feed(BEGIN)
    for _ in range(10):
        server.feed(frame(frames.PING, 0, 0, bytes(8)) * (MAX_GLITCHES // 2))
        server.take()
        server.calm(MAX_GLITCHES // 2)
    assert not server.failed


def test_many_streams_that_were_reset_are_remembered(implementation: Implementation) -> None:
    server = implementation(True, answer_early)
    server.feed(BEGIN)
    numbers = range(1, 2 * REMEMBERED, 2)
    server.feed(b"".join(head(number) + frame(frames.DATA, 0, number, BODY) for number in numbers))
    server.take()
    server.feed(b"".join(frame(frames.DATA, 1, number, BODY) for number in numbers))
    assert server.take() == b"" and not server.failed

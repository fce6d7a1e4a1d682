"""What a client may get wrong on one stream without harm to the others: in Python and in C."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from call_frames import BEGIN, BODY, HEAD, LAST, echo, goodbyes, head, resets
from http2_ends import Call, Event, PythonEnd
from native_end import NativeEnd
from wire_frames import frame, word

from veltair.grpc.http2 import frames, hpack

Implementation: TypeAlias = type[PythonEnd] | type[NativeEnd]


@pytest.fixture(params=[PythonEnd, NativeEnd], ids=["python", "native"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    found: Implementation = request.param
    return found


def test_a_window_that_grows_by_nothing_ends_its_stream_alone(implementation: Implementation) -> None:
    server = implementation(True, echo)
    server.feed(BEGIN + head(1) + head(3) + word(frames.WINDOW_UPDATE, 1, 0) * 2 + frame(frames.DATA, 1, 3, BODY))
    sent = server.take()
    assert resets(sent) == [(1, frames.PROTOCOL_ERROR)] and not goodbyes(sent)
    assert server.calls[1].of_kind("message") == [b"abc"]


LONG = [(f"name-{index}", "a" * 100) for index in range(200)]  # a list of 28 KB, a block of 22 KB


def refuse(call: Call, event: Event) -> None:
    if event[0] == "long_head":
        call.headers([(":status", "200"), ("grpc-status", "8")], end=True)
    else:
        echo(call, event)


@pytest.mark.parametrize("cut", [None, 300, 16_384])
@pytest.mark.parametrize("last", [frames.END_HEADERS, LAST])
def test_a_head_that_is_too_long_ends_its_call(implementation: Implementation, cut: int | None, last: int) -> None:
    server = implementation(True, refuse)
    kept = b"\x40" + hpack.encode([("kept", "b" * 200)])[1:]  # in the table, in front of the fields that are too many
    block = hpack.encode(HEAD) + kept + hpack.encode(LONG)
    parts = [block[at : at + (cut or len(block))] for at in range(0, len(block), cut or len(block))]
    kinds = [frames.HEADERS, *[frames.CONTINUATION] * (len(parts) - 1)]
    ends = last & frames.END_STREAM
    sent = [
        frame(kind, (ends if kind == frames.HEADERS else 0) | (frames.END_HEADERS if part is parts[-1] else 0), 3, part)
        for kind, part in zip(kinds, parts, strict=True)
    ]
    late = b"" if ends else frame(frames.DATA, frames.END_STREAM, 3, BODY)
    known = frame(frames.HEADERS, frames.END_HEADERS, 5, hpack.encode(HEAD) + b"\xbe")  # the newest of the table
    server.feed(BEGIN + head(1) + b"".join(sent) + late + frame(frames.DATA, 1, 1, BODY))
    server.feed(known + frame(frames.DATA, 1, 5, BODY))
    assert not goodbyes(server.take()) and not server.failed
    first, refused, other = server.calls
    assert first.of_kind("message") == other.of_kind("message") == [b"abc"]
    assert refused.events[0] == ("long_head",) and refused.closed
    assert other.of_kind("headers") == [[*HEAD, ("kept", "b" * 200)]]


def test_trailers_that_are_too_long_end_their_call_alone(implementation: Implementation) -> None:
    server = implementation(True, echo)
    server.feed(BEGIN + head(1) + head(1, flags=LAST, fields=LONG) + head(3) + frame(frames.DATA, 1, 3, BODY))
    sent = server.take()
    assert resets(sent) == [(1, frames.ENHANCE_YOUR_CALM)] and not goodbyes(sent)
    assert server.calls[1].of_kind("message") == [b"abc"]


ENDLESS = {
    "in one frame": frame(frames.HEADERS, frames.END_HEADERS, 1, hpack.encode([("a", "b" * 65_600)])),
    "in many": frame(frames.HEADERS, 0, 1, hpack.encode(HEAD))
    + frame(frames.CONTINUATION, 0, 1, hpack.encode([("a", "b" * 10_000)])) * 7,
    "once decoded": frame(
        frames.HEADERS, frames.END_HEADERS, 1, b"\x40" + hpack.encode([("a", "b" * 4000)])[1:] + b"\xbe" * 70
    ),
}


@pytest.mark.parametrize("sent", ENDLESS.values(), ids=ENDLESS)
def test_a_head_without_end_ends_the_connection(implementation: Implementation, sent: bytes) -> None:
    server = implementation(True, echo)
    server.feed(BEGIN + sent)
    assert goodbyes(server.take()) == [frames.ENHANCE_YOUR_CALM] and server.failed

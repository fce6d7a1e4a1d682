"""The connection in C against its reference in Python: any session gives the same events and the same frames."""

from __future__ import annotations

from typing import Any

from http2_ends import End, PythonEnd
from http2_sessions import MAX_MESSAGE_BYTES, Session, react
from hypothesis import given, settings
from hypothesis import strategies as st
from native_end import NativeEnd
from wire_frames import parse_frames

from veltair.grpc.http2 import frames

SESSIONS = 300


def without_text(reply: tuple[int, int, int, bytes]) -> tuple[int, int, int, bytes]:
    """What a GOAWAY frame says about a header block is left out: C has one text for all of its errors."""
    kind, flags, number, payload = reply
    broken = kind == frames.GOAWAY and payload[7] == frames.COMPRESSION_ERROR
    return kind, flags, number, payload[:8] if broken else payload


def outcome(end: End, sent: bytes) -> dict[str, Any]:
    replies = [without_text(reply) for reply in parse_frames(sent.removeprefix(frames.PREFACE))]
    return {"sent": replies, "events": [(call.number, call.events) for call in end.calls], "ready": end.ready}


def check(seed: int) -> dict[str, Any]:
    session = Session(seed)
    python, native = (kind(session.server, react, MAX_MESSAGE_BYTES) for kind in (PythonEnd, NativeEnd))
    found = outcome(python, session.play(python))
    assert outcome(native, session.play(native)) == found, f"session {seed}"
    return found


def test_random_sessions() -> None:
    """And they reach what they are meant to reach."""
    events, kinds, codes = set(), set(), set()
    for seed in range(SESSIONS):
        found = check(seed)
        events |= {event[0] for _, of_call in found["events"] for event in of_call}
        kinds |= {kind for kind, *_ in found["sent"]}
        codes |= {payload[7] for kind, _, _, payload in found["sent"] if kind == frames.GOAWAY}
    assert events == {"headers", "message", "too_large", "end", "aborted", "flushed", "closed"}
    assert kinds >= {frames.DATA, frames.HEADERS, frames.RST_STREAM, frames.SETTINGS, frames.PING, frames.GOAWAY}
    assert codes >= {
        frames.NO_ERROR,
        frames.PROTOCOL_ERROR,
        frames.FRAME_SIZE_ERROR,
        frames.COMPRESSION_ERROR,
    }


@settings(max_examples=100)
@given(st.booleans(), st.binary(max_size=400), st.integers(1, 20))
def test_any_bytes(server: bool, data: bytes, most: int) -> None:
    ends = [kind(server, react, MAX_MESSAGE_BYTES) for kind in (PythonEnd, NativeEnd)]
    found = []
    for end in ends:
        if not server:
            end.open()
        end.feed(frames.PREFACE * server + data, most)
        found.append(outcome(end, end.take()))
    assert found[0] == found[1]

"""The cases of h2spec against a server's end in memory, in Python and in C."""

from __future__ import annotations

import pytest
from h2spec_cases import CASES
from h2spec_frames import Until, found
from http2_ends import Call, Event, PythonEnd
from native_end import NativeEnd
from wire_frames import frame, parse_frames

from veltair.grpc.http2 import frames

ERRORS = (frames.GOAWAY, frames.RST_STREAM)


def answer(call: Call, event: Event) -> None:
    if event[0] == "too_large":
        call.headers([(":status", "200"), ("grpc-status", "8")], end=True)
    elif event[0] == "end":
        call.headers([(":status", "200")])
        call.data(frames.message_prefix(2) + b"ok")
        call.headers([("grpc-status", "0")], end=True)


def hold(call: Call, event: Event) -> None: ...


@pytest.mark.parametrize("implementation", [PythonEnd, NativeEnd], ids=["python", "native"])
@pytest.mark.parametrize("step_bytes", [1 << 20, 3])
@pytest.mark.parametrize("name", CASES)
def test_h2spec(name: str, step_bytes: int, implementation: type[PythonEnd] | type[NativeEnd]) -> None:
    case = CASES[name]
    server = implementation(True, hold if case.held else answer)
    server.feed(frames.PREFACE + frame(frames.SETTINGS, 0, 0))
    replies = parse_frames(server.take())
    for step in case.steps:
        if isinstance(step, Until):
            assert any(kind == step.kind and flags & step.flags == step.flags for kind, flags, *_ in replies)
            replies = []
        else:
            server.feed(step, step_bytes)
            replies += parse_frames(server.take())
    outcomes = found(case, replies)
    assert case.outcome in outcomes
    errors = [outcome for outcome in outcomes if outcome.kind in ERRORS]
    assert errors == ([case.outcome] if case.outcome.kind in ERRORS else [])
    assert server.failed == (case.outcome.kind == frames.GOAWAY)


@pytest.mark.parametrize("name", ["python", "native"])
@pytest.mark.parametrize("preface", [b"INVALID CONNECTION PREFACE\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_h2spec_http2_3_5_2_an_invalid_preface(name: str, preface: bytes) -> None:
    server = (PythonEnd if name == "python" else NativeEnd)(True, hold)
    server.feed(preface)
    (last,) = [payload for kind, _, _, payload in parse_frames(server.take()) if kind == frames.GOAWAY]
    assert last[7] == frames.PROTOCOL_ERROR and server.failed

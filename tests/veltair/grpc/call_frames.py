"""Calls of gRPC as a client's frames, and the errors that a server answers with."""

from __future__ import annotations

from http2_ends import Call, Event
from wire_frames import frame, parse_frames

from veltair.grpc.http2 import frames, hpack

HEAD = [(":method", "POST"), (":scheme", "http"), (":path", "/t/echo"), ("content-type", "application/grpc")]
BEGIN = frames.PREFACE + frame(frames.SETTINGS, 0, 0)
LAST = frames.END_HEADERS | frames.END_STREAM
BODY = frames.message_prefix(3) + b"abc"


def head(number: int, *more: hpack.Field, flags: int = frames.END_HEADERS, fields: list[hpack.Field] = HEAD) -> bytes:
    return frame(frames.HEADERS, flags, number, hpack.encode([*fields, *more]))


def echo(call: Call, event: Event) -> None:
    if event[0] == "end":
        message = b"".join(call.of_kind("message"))
        call.headers([(":status", "200")])
        call.data(frames.message_prefix(len(message)) + message)
        call.headers([("grpc-status", "0")], end=True)


def goodbyes(sent: bytes) -> list[int]:
    return [int.from_bytes(payload[4:8], "big") for kind, _, _, payload in parse_frames(sent) if kind == frames.GOAWAY]


def resets(sent: bytes) -> list[tuple[int, int]]:
    found = [(number, payload) for kind, _, number, payload in parse_frames(sent) if kind == frames.RST_STREAM]
    return [(number, int.from_bytes(payload, "big")) for number, payload in found]

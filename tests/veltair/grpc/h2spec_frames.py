"""What the cases of h2spec_cases.py are made of: frames that are sent, and what has to come back."""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from wire_frames import frame, word

from veltair.grpc.http2 import frames, hpack
from veltair.grpc.http2.frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
)


class Outcome(NamedTuple):
    """A frame that has to come."""

    kind: int
    code: int = 0  # of an error
    size: int = 0  # of data


class Until(NamedTuple):
    """What comes back is read up to a frame of this kind that has these flags, before more is sent."""

    kind: int
    flags: int = 0


Step: TypeAlias = bytes | Until


class Case(NamedTuple):
    outcome: Outcome
    steps: tuple[Step, ...]  # behind the client's preface and its first, empty settings
    held: bool = False  # the server does not answer, so that the stream stays half closed


def fails(code: int, *steps: Step, held: bool = False) -> Case:
    """The connection ends with a GOAWAY."""
    return Case(Outcome(GOAWAY, code), steps, held)


def resets(code: int, *steps: Step, held: bool = False) -> Case:
    """Stream 1, or the last one, is reset."""
    return Case(Outcome(RST_STREAM, code), steps, held)


def answers(*steps: Step) -> Case:
    """The request has a response."""
    return Case(Outcome(HEADERS), steps)


def pongs(*steps: Step) -> Case:
    """The connection goes on."""
    return Case(Outcome(PING), (*steps, PING_FRAME))


def sends(size: int, *steps: Step) -> Case:
    """The next frame of data has so many bytes."""
    return Case(Outcome(DATA, size=size), steps)


FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ServerLive"),
    (":authority", "127.0.0.1"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
PING_FRAME = frame(PING, 0, 0, b"h2spec\0\0")
EMPTY = frames.message_prefix(0)
BLOCK = hpack.encode(FIELDS)
MORE = hpack.encode([("x-dummy0", "a" * 40)])
ENDED = Until(HEADERS, END_STREAM)
CANCEL = word(RST_STREAM, 1, frames.CANCEL)


def head(flags: int = END_HEADERS | END_STREAM, number: int = 1, block: bytes = BLOCK) -> bytes:
    return frame(HEADERS, flags, number, block)


def more(flags: int = END_HEADERS, number: int = 1, block: bytes = MORE) -> bytes:
    return frame(CONTINUATION, flags, number, block)


def data(payload: bytes = b"test", flags: int = END_STREAM, number: int = 1) -> bytes:
    return frame(DATA, flags, number, payload)


def priority(number: int = 1, on: int = 0, weight: int = 1, *, exclusive: bool = False) -> bytes:
    return frame(PRIORITY, 0, number, struct.pack(">IB", on | exclusive << 31, weight - 1))


def fields(*added: hpack.Field, without: str = "", number: int = 1, flags: int = END_HEADERS | END_STREAM) -> bytes:
    return head(flags, number, hpack.encode([field for field in FIELDS if field[0] != without] + list(added)))


def pseudo(*added: hpack.Field) -> bytes:
    """A request with more pseudo-header fields, in their place."""
    return head(block=hpack.encode([*FIELDS[:4], *added, *FIELDS[4:]]))


def with_field(representation: str) -> Case:
    """A request whose header block ends with these bytes."""
    return answers(head(block=BLOCK + bytes.fromhex(representation)))


def broken_block(representation: str) -> Case:
    return fails(COMPRESSION_ERROR, head(block=BLOCK + bytes.fromhex(representation)))


OPEN, UNFINISHED = head(END_HEADERS), head(END_STREAM)
ASK = OPEN + data(EMPTY)
HUGE = struct.pack(">I", 2**31 - 1)
AGENT, TEST, VALUE = "0a757365722d6167656e74", "06782d74657374", "06683273706563"  # user-agent, x-test, h2spec
PACKED_AGENT, PACKED_TEST, PACKED_VALUE = "87b505b161cc5a93", "85f2b24a84ff", "849c48aca4"  # in Huffman's code


def found(case: Case, replies: list[tuple[int, int, int, bytes]]) -> list[Outcome]:
    """What the frames that came are, as far as they may decide the case."""
    outcomes = []
    for kind, flags, _, payload in replies:
        if kind in (GOAWAY, RST_STREAM):
            code = int.from_bytes(payload[4:8] if kind == GOAWAY else payload, "big")
            if code != frames.NO_ERROR:
                outcomes.append(Outcome(kind, code))
        elif kind == DATA and payload and case.outcome.kind == DATA:
            outcomes.append(Outcome(kind, size=len(payload)))
        elif kind == HEADERS or (kind in (PING, SETTINGS) and flags & ACK):
            outcomes.append(Outcome(kind))
    return outcomes

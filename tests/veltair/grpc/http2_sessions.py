"""Random HTTP/2 sessions: what arrives at one end, in order and disorder, and what its owner does meanwhile."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from itertools import pairwise

from http2_ends import Call, End, Event
from wire_frames import frame

from veltair.grpc.http2 import frames, hpack

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t/echo"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
ODD_FIELDS = [
    [("content-length", "8")],
    [("content-length", "x")],
    [("te", "gzip")],
    [("connection", "close")],
    [(":path", "/")],
    [("Upper", "a")],
    [("a", "b\n")],
]
ANSWER, TRAILERS = [(":status", "200"), ("content-type", "application/grpc")], [("grpc-status", "0")]
MAX_MESSAGE_BYTES = 40_000
PRINTABLE = bytes(byte if byte >= 0x20 else byte + 0x20 for byte in range(256))  # of a field's value
BROKEN_BLOCKS = [b"\xff\xff", b"\xc4", b"\x80", b"\x41\x05ab", b""]


@dataclass
class Session:
    """A seed's session: the same steps for every end that it is played to."""

    seed: int

    @property
    def server(self) -> bool:
        return random.Random(self.seed).random() < 0.7

    def play(self, end: End) -> bytes:
        """Play the session. Returns what the end has sent."""
        chance, sent = random.Random(self.seed + 1), b""
        self._next = -1
        wild = chance.choice([0, 0, 0, 0, 0.02, 0.2])  # share of frames that are damaged or out of order
        numbers: list[int] = []  # of streams on which something may come
        settings = frame(frames.SETTINGS, 0, 0) * (chance.random() < 0.95)
        end.feed((frames.PREFACE if self.server else b"") + settings)
        for _ in range(chance.randrange(1, 40)):
            if not self.server and chance.random() < 0.3 and not end.leaving:
                call = end.open()
                numbers.append(call.number)
                self._ask(call, chance)
            data = b"".join(self._frame(chance, wild, numbers) for _ in range(chance.randrange(1, 6)))
            most = chance.choice([1, 7, 1000, 1 << 20]) if len(data) < 3000 else 1 << 20
            end.feed(data, most)
            self._act(end, chance)
            sent += end.take(chance.choice([0, 10, 1 << 30]))
        sent += end.take()
        if chance.random() < 0.5:
            end.lose()
        return sent

    def _ask(self, call: Call, chance: random.Random) -> None:
        call.headers(REQUEST)
        call.data(message(chance), end=chance.random() < 0.7)

    def _act(self, end: End, chance: random.Random) -> None:
        if end.calls and chance.random() < 0.4:
            call = chance.choice(end.calls)
            action, last = chance.randrange(5), chance.random() < 0.5
            if action == 0:
                call.data(message(chance), end=last)
            elif action == 1:
                call.headers(TRAILERS, end=last)
            elif action == 2:
                call.reset(chance.randrange(20))
            else:
                call.hold(action == 3)
        if chance.random() < 0.02:
            end.leave()

    def _frame(self, chance: random.Random, wild: float, numbers: list[int]) -> bytes:
        disorder = chance.random() < wild
        kind = chance.choices(range(11), [14, 9, 1, 1, 1, wild, 1, 0.1, 4, wild, 0.3])[0]
        flags = chance.choice([0, 0, 1, chance.randrange(256)])
        if disorder:
            number = chance.choice([1, 3, 5, chance.randrange(30)])
        elif self.server and kind == frames.HEADERS and (not numbers or chance.random() < 0.8):
            number = self._next = self._next + 2
            numbers.append(number)
        elif numbers:
            number = chance.choice(numbers)
        else:
            kind, number = frames.SETTINGS, 0
        if kind in (frames.DATA, frames.HEADERS) and flags & frames.END_STREAM and number in numbers and not disorder:
            numbers.remove(number)
        payload = b""
        if kind == frames.DATA:
            payload = message(chance)
        elif kind in (frames.HEADERS, frames.CONTINUATION):
            flags |= frames.END_HEADERS * (chance.random() >= wild)
            fields = REQUEST if self.server else chance.choice([ANSWER, TRAILERS])
            if self.server and chance.random() < 0.05:
                fields = fields[1:] if chance.random() < 0.2 else fields + chance.choice(ODD_FIELDS)
            payload = chance.choice(BROKEN_BLOCKS) if disorder else hpack.encode(fields) + kept_fields(chance)
            if chance.random() < 0.01:
                payload = bytes([0x20 | chance.randrange(31)]) + payload  # a small table
            elif chance.random() < 0.05:
                payload = b"\x3f\xe1\x1f" + payload  # as large as it may be
            flags &= ~frames.PADDED & ~frames.HAS_PRIORITY
            if kind == frames.HEADERS and chance.random() < 0.3:
                return cut_headers(chance, flags, number, payload)
        elif kind == frames.RST_STREAM:
            payload = chance.randbytes(4)
        elif kind == frames.SETTINGS:
            number = 0
            key, value = chance.choice(
                [(3, 2), (4, chance.choice([0, 10, 70_000, 2**30, 2**31 - 1])), (5, 16384), (1, 0)]
            )
            payload = struct.pack(">HI", key, value) * (chance.random() < 0.9)
            flags = 0
        elif kind == frames.PING:
            number *= disorder
            payload = chance.randbytes(8)
        elif kind == frames.GOAWAY:
            number *= disorder
            payload = struct.pack(">II", chance.randrange(12), 0)
        elif kind == frames.WINDOW_UPDATE:
            number *= chance.random() < 0.6
            payload = struct.pack(">I", chance.choice([1, 100, 60_000, chance.randrange(2**32 if disorder else 2**20)]))
        if kind == frames.DATA and flags & frames.PADDED:
            payload = b"\3" + payload + bytes(3)
        data = bytearray(frame(kind, flags, number, payload))
        if disorder and chance.random() < 0.5:
            data[chance.randrange(min(len(data), 40))] = chance.randrange(256)
        return bytes(data)


def kept_fields(chance: random.Random) -> bytes:
    """Fields that the decoder keeps, each said again by its index; their texts are plain or packed."""
    block = b""
    for _ in range(chance.choice([0, 0, 1, 4])):
        size = chance.choice([0, 10, 100, 1000, 1900])
        length = size if size < 127 else 127
        digits = b"" if size < 127 else bytes([(size - 127) & 0x7F | 0x80, (size - 127) >> 7])
        name = b"\x02ab" if chance.random() < 0.7 else bytes.fromhex("8825a849e95ba97d7f")
        block += b"\x40" + name + bytes([length]) + digits + chance.randbytes(size).translate(PRINTABLE)
        block += b"\xbe" * (chance.random() < 0.3 and size + 40 < 300)
    return block


def cut_headers(chance: random.Random, flags: int, number: int, block: bytes) -> bytes:
    """A header block in several frames, the first one with padding and a priority."""
    cuts = sorted(chance.randrange(len(block) + 1) for _ in range(chance.randrange(3)))
    first, *rest = (block[begin:end] for begin, end in pairwise([0, *cuts, len(block)]))
    padding = chance.randrange(256)
    flags |= frames.PADDED | frames.HAS_PRIORITY
    first = bytes([padding]) + bytes(5) + first + bytes(padding)
    if not rest:
        return frame(frames.HEADERS, flags, number, first)
    parts = [frame(frames.HEADERS, flags & ~frames.END_HEADERS, number, first)]
    parts += [frame(frames.CONTINUATION, 0, number, part) for part in rest[:-1]]
    return b"".join(parts) + frame(frames.CONTINUATION, flags & frames.END_HEADERS, number, rest[-1])


def message(chance: random.Random) -> bytes:
    """Messages behind their prefixes, also none, a part of one, or one that is too large."""
    sizes = chance.choice([[0], [3], [3, 0, 5], [], [chance.randrange(MAX_MESSAGE_BYTES + 100)], [30_000]])
    data = b"".join(bytes([chance.randrange(2)]) + struct.pack(">I", size) + chance.randbytes(size) for size in sizes)
    return data if chance.random() < 0.8 else data[: chance.randrange(len(data) + 1)]


def react(call: Call, event: Event) -> None:
    """Does something different for each stream; within the handlers, where a stream may also end."""
    mood = call.number % 16
    if event[0] == "message":
        if mood in (1, 9):
            call.headers(ANSWER)
            call.data(frames.message_prefix(len(event[1])) + event[1])
            call.headers(TRAILERS, end=True)
        elif mood == 3:
            call.reset(8)
        elif mood == 5:
            call.data(event[1][:100])
    elif event[0] == "headers" and mood == 7:
        call.headers(TRAILERS, end=True)
    elif event[0] == "end" and mood in (5, 11):
        call.data(b"abcde", end=True)
    elif event[0] == "too_large" and mood in (1, 3):
        call.headers(TRAILERS, end=True)
    elif event[0] == "flushed" and mood == 13:
        call.reset(1)

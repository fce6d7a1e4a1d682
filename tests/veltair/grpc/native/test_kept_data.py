"""Data that is sent without a copy: the same frames, in pieces, from the caller's memory."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import pytest
from http2_ends import Event
from hypothesis import given, settings
from hypothesis import strategies as st
from native_end import NativeCall, NativeEnd, library
from wire_frames import parse_frames, setting, word

from veltair.grpc.http2 import frames

MOST = 1000
LARGE = 1 << 13  # from here on nothing is copied
SIZES = (0, 1, 100, LARGE - 1, LARGE, LARGE + 1, 40_000, 2_000_000)


class Piece(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class KeptCall(NativeCall):
    def __init__(self, stream: int) -> None:
        super().__init__(stream)
        self.memory: list[Any] = []

    def data(self, data: bytes, *, end: bool = False) -> None:
        self.memory.append(ctypes.create_string_buffer(data, max(len(data), 1)))
        library.h2_kept_data(self._stream, self.memory[-1], len(data), end)


class KeptEnd(NativeEnd):
    call_type = KeptCall

    def pieces(self, most: int = MOST) -> list[tuple[int, int]]:
        """The waiting output: address and size of each piece."""
        found = (Piece * most)()
        count = library.h2_output_pieces(self._connection, found, most)
        return [(piece.data, piece.size) for piece in found[:count]]

    def take(self, most: int = 1 << 30) -> bytes:
        pieces = self.pieces()
        assert self.pieces(1) == pieces[:1]
        sent = b"".join(ctypes.string_at(*piece) for piece in pieces)[:most]
        library.h2_sent(self._connection, len(sent))
        return sent


class FirstPieceEnd(KeptEnd):
    """Takes what h2_output gives."""

    def take(self, most: int = 1 << 30) -> bytes:
        return NativeEnd.take(self, most)


def ignore(call: Any, event: Event) -> None: ...


def play(end: NativeEnd, sizes: list[int], takes: list[int], frame_bytes: int, window: int) -> bytes:
    """What leaves when data of these sizes is sent, in takes of these sizes, each of them answered with a window."""
    end.feed(setting(frames.MAX_FRAME_SIZE, frame_bytes))
    call = end.open()
    call.headers([(":status", "200")])
    for i, size in enumerate(sizes):
        call.data(bytes([i]) * size, end=i == len(sizes) - 1)
    sent = bytearray()
    for size in itertools.cycle(takes):
        part = end.take(size)
        if not part:
            break
        sent += part
        end.feed(word(frames.WINDOW_UPDATE, 0, window) + word(frames.WINDOW_UPDATE, call.number, window))
    assert call.events[-1] == ("flushed",)
    return bytes(sent)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(SIZES), min_size=1, max_size=5),
    st.lists(st.integers(1000, 300_000), min_size=1, max_size=5),
    st.sampled_from([frames.DEFAULT_FRAME_BYTES, 100_000, 1 << 20]),
    st.integers(5000, 200_000),
)
def test_the_frames_are_those_of_copied_data(sizes: list[int], takes: list[int], frame_bytes: int, window: int) -> None:
    """However little the windows allow and the socket takes."""
    expected = play(NativeEnd(False, ignore), sizes, takes, frame_bytes, window)
    assert play(KeptEnd(False, ignore), sizes, takes, frame_bytes, window) == expected
    found = parse_frames(expected.removeprefix(frames.PREFACE))
    data = b"".join(payload for kind, _, _, payload in found if kind == frames.DATA)
    assert data == b"".join(bytes([i]) * size for i, size in enumerate(sizes))


def test_what_h2_output_gives_is_the_first_piece() -> None:
    sizes, takes = [100, 300_000, 5, 20_000], [1 << 30]
    expected = play(NativeEnd(False, ignore), sizes, takes, 1 << 14, 100_000)
    assert play(FirstPieceEnd(False, ignore), sizes, takes, 1 << 14, 100_000) == expected


@pytest.mark.parametrize(("size", "copied"), [(LARGE - 1, True), (LARGE, False), (60_000, False)])
def test_large_data_stays_where_it_is(size: int, copied: bool) -> None:
    end = KeptEnd(False, ignore)
    end.feed(setting(frames.MAX_FRAME_SIZE, 1 << 20))
    end.take()
    call = end.open()
    assert isinstance(call, KeptCall)
    call.data(bytes(size))
    assert ((ctypes.addressof(call.memory[0]), size) in end.pieces()) == (not copied)

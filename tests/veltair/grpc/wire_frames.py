"""Frames of HTTP/2 as a peer writes them, broken ones too."""

from __future__ import annotations

import struct

from veltair.grpc.http2 import frames


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def word(kind: int, stream: int, value: int) -> bytes:
    return frame(kind, 0, stream, struct.pack(">I", value))


def setting(key: int, value: int) -> bytes:
    return frame(frames.SETTINGS, 0, 0, struct.pack(">HI", key, value))


def parse_frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Frames as (kind, flags, stream, payload)."""
    replies = []
    while len(data) >= 9:
        size = int.from_bytes(data[:3], "big")
        replies.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return replies

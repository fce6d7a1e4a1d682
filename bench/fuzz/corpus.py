"""Kept inputs of the fuzzers: one file a target, of records of a size (u32, little-endian) and as many bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from bench.paths import ROOT

KEPT = ROOT / "tests" / "fuzz"
_SIZE = struct.Struct("<I")


def path_of(target: str) -> Path:
    return KEPT / f"{target}.corpus"


def read_inputs(target: str) -> list[bytes]:
    """The kept inputs; none where there is no file."""
    path = path_of(target)
    data, at, found = path.read_bytes() if path.exists() else b"", 0, []
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        found.append(data[at : at + size])
        at += size
    return found


def write_inputs(target: str, inputs: Iterable[bytes]) -> None:
    """Keep these, in an order that does not depend on the run."""
    ordered = sorted(set(inputs), key=lambda data: (len(data), data))
    path_of(target).write_bytes(b"".join(_SIZE.pack(len(data)) + data for data in ordered))

"""System shared memory, the protocol's extension: a client on this machine puts its tensors where it says they lie.

A query then carries places instead of bytes. Regions are read and written by file offset, never mapped: a client may
cut its file at any moment, and a mapping would kill the front with it. What is read is a copy, so that nobody changes
a tensor after it was checked. Off unless the configuration allows it, since whoever reaches the server may name any
shared memory that the server's user can open.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from veltair.errors import RequestError, TooLargeError, UnsupportedError
from veltair.server.protocol.requests import NamedTensor, Place, Tensor, raw

FOLDER = Path("/dev/shm")  # where POSIX shared memory lives on Linux
MOST_REGIONS = 256  # each holds a file open
LONGEST_NAME = 256
_KEY = re.compile(r"/?([A-Za-z0-9_][A-Za-z0-9._-]{0,254})")  # of shm_open; never a path


@dataclass(frozen=True, slots=True)
class Region:
    name: str
    key: str
    offset: int
    size_bytes: int
    file: int

    def described(self) -> dict[str, str | int]:
        """As the protocol tells it."""
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.size_bytes}


class Regions:
    """Those that clients registered, by name."""

    def __init__(self, limit_bytes: int, *, allowed: bool) -> None:
        """`limit_bytes`: of one query's inputs together."""
        self.allowed = allowed
        self._limit_bytes = limit_bytes
        self._regions: dict[str, Region] = {}

    def require_allowed(self) -> None:
        """Raises UnsupportedError."""
        if not self.allowed:
            raise UnsupportedError("shared memory is off: `shared_memory = true` under [server] allows it")

    def register(self, name: str, key: str, offset: int, size_bytes: int) -> None:
        """Raises RequestError for a key that is none, a name that is taken, and bytes that are not there."""
        self.require_allowed()
        match = _KEY.fullmatch(key)
        if not name or len(name) > LONGEST_NAME:
            raise RequestError(f"the name of a region has 1 to {LONGEST_NAME} characters, got {len(name)}")
        if match is None:
            raise RequestError(f"region {name!r:.80}: its key must be a name as shm_open takes it")
        if offset < 0 or size_bytes < 1:
            raise RequestError(f"region {name!r:.80}: offset {offset} and byte_size {size_bytes} are no part of memory")
        if name in self._regions:
            raise RequestError(f"region {name!r:.80} is registered already")
        if len(self._regions) >= MOST_REGIONS:
            raise RequestError(f"region {name!r:.80}: {MOST_REGIONS} are registered already, which is the most")
        self._regions[name] = Region(name, key, offset, size_bytes, _open(name, match[1], offset + size_bytes))

    def unregister(self, name: str = "") -> None:
        """One region, known or not; all of them without a name."""
        self.require_allowed()
        for each in [name] if name else list(self._regions):
            if (region := self._regions.pop(each, None)) is not None:
                os.close(region.file)

    def listed(self, name: str = "") -> list[Region]:
        """All, or the one of that name. Raises RequestError when there is none."""
        self.require_allowed()
        return [self._region(name)] if name else list(self._regions.values())

    def fetched(self, tensors: Sequence[NamedTensor]) -> Sequence[NamedTensor]:
        """The same tensors with the bytes of those that lie in a region. Raises RequestError."""
        placed = [tensor.data.size_bytes for tensor in tensors if isinstance(tensor.data, Place)]
        if not placed:
            return tensors
        self.require_allowed()
        if sum(placed) > self._limit_bytes:
            raise TooLargeError(f"the inputs take {sum(placed)} bytes, {self._limit_bytes} are allowed")
        return [
            replace(tensor, data=self._read(f"input {tensor.name!r}", tensor.data))
            if isinstance(tensor.data, Place)
            else tensor
            for tensor in tensors
        ]

    def check(self, places: Mapping[str, Place]) -> None:
        """That outputs can go there, before anything is computed. Raises RequestError."""
        if places:
            self.require_allowed()
        for output, place in places.items():
            self._at(f"output {output!r}", place)

    def store(self, outputs: Mapping[str, Tensor], places: Mapping[str, Place]) -> dict[str, Place]:
        """Write outputs to their places; what each then takes. Raises RequestError when one does not fit."""
        stored = {}
        for output, place in places.items():
            data, where = raw(outputs[output]), f"output {output!r}"
            if len(data) > place.size_bytes:
                raise RequestError(f"{where}: takes {len(data)} bytes, its place has {place.size_bytes}")
            file, at = self._at(where, place)
            try:
                if os.fstat(file).st_size < at + len(data) or os.pwrite(file, data, at) < len(data):
                    raise RequestError(f"{where}: region {place.region!r:.80} has become shorter than it was")
            except OSError as error:
                raise RequestError(f"{where}: region {place.region!r:.80}: {error.strerror}") from None
            stored[output] = Place(place.region, place.offset, len(data))
        return stored

    def close(self) -> None:
        for region in self._regions.values():
            os.close(region.file)
        self._regions.clear()

    def _read(self, where: str, place: Place) -> bytes:
        file, at = self._at(where, place)
        data = os.pread(file, place.size_bytes, at)
        if len(data) < place.size_bytes:
            raise RequestError(f"{where}: region {place.region!r:.80} has become shorter than it was")
        return data

    def _at(self, where: str, place: Place) -> tuple[int, int]:
        """File and offset in it."""
        region = self._region(place.region)
        if place.offset + place.size_bytes > region.size_bytes:
            raise RequestError(
                f"{where}: bytes {place.offset} to {place.offset + place.size_bytes} lie outside of region "
                f"{region.name!r:.80}, which has {region.size_bytes}"
            )
        return region.file, region.offset + place.offset

    def _region(self, name: str) -> Region:
        if (region := self._regions.get(name)) is None:
            raise RequestError(f"no region {name!r:.80} is registered")
        return region


def _open(name: str, key: str, end: int) -> int:
    try:
        file = os.open(FOLDER / key, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise RequestError(f"region {name!r:.80}: its memory cannot be opened: {error.strerror}") from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_size < end:
        os.close(file)
        raise RequestError(f"region {name!r:.80}: expected {end} bytes of shared memory, found {found.st_size}")
    return file

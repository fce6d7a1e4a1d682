"""`SharedMemoryRegions`: a client on this machine names shared memory that holds its tensors (a protocol extension).

A request then carries locations instead of bytes. Regions are read and written by file offset, never mapped: a client
may truncate its file at any moment, and a mapping would kill the front with it. Inputs are copied, so that nobody
changes a tensor after it was checked. A region belongs to the client that registered it. The feature is off unless the
configuration allows it, since a client without a `user` can name any shared memory that the server's user can open.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from veltair.errors import RequestError, TooLargeError, UnsupportedError, quoted
from veltair.server.access.callers import caller
from veltair.server.protocol.datatypes import Tensor
from veltair.server.protocol.infer_request import NamedTensor, TensorLocation
from veltair.server.protocol.tensor_values import tensor_bytes

FOLDER = Path("/dev/shm")  # where POSIX shared memory lives on Linux
MAX_REGIONS = 256  # each holds a file open
MAX_NAME = 256  # characters
_KEY = re.compile(r"/?([A-Za-z0-9_][A-Za-z0-9._-]{0,254})")  # of shm_open; never a path


@dataclass(frozen=True, slots=True)
class SharedMemoryRegion:
    """A part of a client's shared memory, registered under a name.

    >>> SharedMemoryRegion("tensors", "/shm-key", offset=0, size_bytes=480, file=-1).description()
    {'name': 'tensors', 'key': '/shm-key', 'offset': 0, 'byte_size': 480}
    """

    name: str
    key: str
    offset: int
    size_bytes: int
    file: int

    def description(self) -> dict[str, str | int]:
        """The region as the protocol writes it."""
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.size_bytes}


class SharedMemoryRegions:
    """The regions that clients registered, by name.

    >>> regions = SharedMemoryRegions(limit_bytes=1 << 20, allowed=True)
    >>> regions.list_regions()
    []
    """

    def __init__(self, limit_bytes: int, *, allowed: bool) -> None:
        """`limit_bytes` bounds the inputs of one query together."""
        self.allowed = allowed
        self._limit_bytes = limit_bytes
        self._regions: dict[tuple[str, str], SharedMemoryRegion] = {}  # by caller and name
        self.on_unregister: Callable[[], None] = lambda: None  # before a region's file is closed

    def require_allowed(self) -> None:
        """Raises UnsupportedError when the configuration does not allow shared memory."""
        if not self.allowed:
            raise UnsupportedError("shared memory is off: `shared_memory = true` under [server] allows it")

    def register(self, name: str, key: str, offset: int, size_bytes: int) -> None:
        """Raises RequestError for an invalid key, a name that is taken, and bytes that do not exist."""
        self.require_allowed()
        match = _KEY.fullmatch(key)
        if not name or len(name) > MAX_NAME:
            raise RequestError(f"the name of a region has 1 to {MAX_NAME} characters, got {len(name)}")
        if match is None:
            raise RequestError(f"region {quoted(name)}: its key must be a name as shm_open takes it")
        if offset < 0 or size_bytes < 1:
            raise RequestError(
                f"region {quoted(name)}: offset {offset} and byte_size {size_bytes} are no part of memory"
            )
        who = caller.get()
        own = self.list_regions()
        if any(region.name == name for region in own):
            raise RequestError(f"region {quoted(name)} is registered already")
        if len(own) >= MAX_REGIONS:
            raise RequestError(f"region {quoted(name)}: {MAX_REGIONS} are registered already, which is the most")
        file = _open(name, match[1], offset + size_bytes, who.user)
        self._regions[who.name, name] = SharedMemoryRegion(name, key, offset, size_bytes, file)

    def unregister(self, name: str = "") -> None:
        """Forget one region, known or not; all of them without a name."""
        self.require_allowed()
        self.on_unregister()
        for each in [name] if name else [region.name for region in self.list_regions()]:
            if (region := self._regions.pop((caller.get().name, each), None)) is not None:
                os.close(region.file)

    def list_regions(self, name: str = "") -> list[SharedMemoryRegion]:
        """All that the caller has registered, or the one of that name. Raises RequestError when there is none."""
        self.require_allowed()
        own = [region for (owner, _), region in self._regions.items() if owner == caller.get().name]
        return [self._region(name)] if name else own

    def read_inputs(self, tensors: Sequence[NamedTensor]) -> Sequence[NamedTensor]:
        """The same tensors with the bytes of those that lie in a region. Raises RequestError."""
        sizes = [tensor.data.size_bytes for tensor in tensors if isinstance(tensor.data, TensorLocation)]
        if not sizes:
            return tensors
        self.require_allowed()
        if sum(sizes) > self._limit_bytes:
            raise TooLargeError(f"the inputs take {sum(sizes)} bytes, {self._limit_bytes} are allowed")
        return [
            replace(tensor, data=self._read(f"input {quoted(tensor.name)}", tensor.data))
            if isinstance(tensor.data, TensorLocation)
            else tensor
            for tensor in tensors
        ]

    def check_outputs(self, locations: Mapping[str, TensorLocation]) -> None:
        """Check, before the query runs, that outputs can be written to their locations. Raises RequestError."""
        if locations:
            self.require_allowed()
        for output, location in locations.items():
            self.file_and_offset(f"output {quoted(output)}", location)

    def write_outputs(
        self, outputs: Mapping[str, Tensor], locations: Mapping[str, TensorLocation]
    ) -> dict[str, TensorLocation]:
        """Write the outputs to their locations. Returns the locations with the sizes written. Raises RequestError."""
        stored = {}
        for output, location in locations.items():
            data, where = tensor_bytes(outputs[output]), f"output {quoted(output)}"
            if len(data) > location.size_bytes:
                raise RequestError(f"{where}: takes {len(data)} bytes, its shared memory has {location.size_bytes}")
            file, at = self.file_and_offset(where, location)
            try:
                if os.fstat(file).st_size < at + len(data) or os.pwrite(file, data, at) < len(data):
                    raise RequestError(f"{where}: region {quoted(location.region)} has become shorter than it was")
            except OSError as error:
                raise RequestError(f"{where}: region {quoted(location.region)}: {error.strerror}") from None
            stored[output] = TensorLocation(location.region, location.offset, len(data))
        return stored

    def close(self) -> None:
        for region in self._regions.values():
            os.close(region.file)
        self._regions.clear()

    def _read(self, where: str, location: TensorLocation) -> bytes:
        file, at = self.file_and_offset(where, location)
        data = os.pread(file, location.size_bytes, at)
        if len(data) < location.size_bytes:
            raise RequestError(f"{where}: region {quoted(location.region)} has become shorter than it was")
        return data

    def file_and_offset(self, where: str, location: TensorLocation) -> tuple[int, int]:
        """Where the location lies in the client's file. Raises RequestError, which begins with `where`."""
        region = self._region(location.region)
        if location.offset + location.size_bytes > region.size_bytes:
            raise RequestError(
                f"{where}: bytes {location.offset} to {location.offset + location.size_bytes} lie outside of region "
                f"{quoted(region.name)}, which has {region.size_bytes}"
            )
        return region.file, region.offset + location.offset

    def _region(self, name: str) -> SharedMemoryRegion:
        if (region := self._regions.get((caller.get().name, name))) is None:
            raise RequestError(f"no region {quoted(name)} is registered")
        return region


class CudaRegions:
    """Regions of CUDA memory: there are none, and nobody can register any.

    Clients list and unregister both kinds before they begin, whichever they use, as Triton's examples do.

    >>> CudaRegions(SharedMemoryRegions(limit_bytes=1 << 20, allowed=True)).list_regions()
    []
    """

    def __init__(self, system: SharedMemoryRegions) -> None:
        self._system = system

    def require_allowed(self) -> None:
        """Raises UnsupportedError."""
        raise UnsupportedError("CUDA memory is not supported: models run on CPUs alone")

    def register(self, name: str, key: str, offset: int, size_bytes: int) -> None:
        self.require_allowed()

    def unregister(self, name: str = "") -> None:
        """Raises UnsupportedError when the configuration does not allow shared memory."""
        self._system.require_allowed()

    def list_regions(self, name: str = "") -> list[SharedMemoryRegion]:
        """None. Raises RequestError where one is asked for by name, and what `unregister` raises."""
        self._system.require_allowed()
        if name:
            raise RequestError(f"no region {quoted(name)} is registered")
        return []


def _open(name: str, key: str, end: int, user: str | None) -> int:
    """The descriptor of a client's memory. Raises RequestError unless it is a file of this user with `end` bytes."""
    try:
        file = os.open(FOLDER / key, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise RequestError(f"region {quoted(name)}: its memory cannot be opened: {error.strerror}") from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_size < end:
        os.close(file)
        raise RequestError(f"region {quoted(name)}: expected {end} bytes of shared memory, found {found.st_size}")
    if user is not None and found.st_uid != _number_of(user):
        os.close(file)
        raise RequestError(f"region {quoted(name)}: its memory belongs to another user than {user!r}")
    return file


def _number_of(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return -1

"""Length-prefixed strings: the protocol sends each behind its length in bytes (u32, little-endian)."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from numpy.typing import NDArray

from veltair.errors import RequestError, TooLargeError
from veltair.machine.native_library import array_address, native_library
from veltair.profiles.artifact.strings import MOST_BYTES, Strings

PREFIX_BYTES = 4


@cache
def _library() -> ctypes.CDLL:
    library = native_library("veltair.server.protocol._length_prefixed")
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    library.unprefix.argtypes, library.unprefix.restype = (pointer, size, size, pointer, pointer), size
    library.bytes_beside_field.argtypes, library.bytes_beside_field.restype = (pointer, size, ctypes.c_uint32), size
    library.prefix.argtypes, library.prefix.restype = (pointer, pointer, size, pointer), None
    return library


def decode(where: str, data: bytes | memoryview, count: int) -> Strings:
    """Decode `count` strings in one pass over the bytes. Raises RequestError, which begins with `where`.

    >>> decode("input 'x'", b"\\1\\0\\0\\0a\\2\\0\\0\\0bc", count=2).tolist()
    [b'a', b'bc']
    """
    source = np.frombuffer(data, np.uint8)
    size = source.size
    if size > MOST_BYTES:
        raise TooLargeError(f"{where}: {size} bytes of strings; one tensor takes {MOST_BYTES}")
    if size < PREFIX_BYTES * count:  # before memory is allocated for an invented shape
        raise RequestError(f"{where}: {count} strings take at least {PREFIX_BYTES * count} bytes, got {size}")
    letters, offsets = np.empty(size, np.uint8), np.empty(count + 1, np.int32)
    found: int = _library().unprefix(array_address(source), size, count, array_address(offsets), array_address(letters))
    if found < 0:
        raise RequestError(f"{where}: {_describe_fault(source, -1 - found)}")
    if found != count:
        raise RequestError(f"{where}: expected {count} strings, got {found}")
    return Strings(letters[: offsets[-1]], offsets)


def encode(strings: Strings) -> memoryview:
    """The strings, each behind its length."""
    offsets, letters = np.ascontiguousarray(strings.offsets), np.ascontiguousarray(strings.data)
    count = offsets.size - 1
    target = np.empty(int(offsets[-1]) + PREFIX_BYTES * count, np.uint8)
    _library().prefix(array_address(letters), array_address(offsets), count, array_address(target))
    return target.data


def bytes_beside_field(message: bytes | memoryview, number: int) -> int:
    """Bytes of a message of protobuf but those of one length-delimited field; all where it cannot be told.

    >>> bytes_beside_field(b"\\x0a\\1m\\x3a\\4abcd", 7)
    3
    """
    source = np.frombuffer(message, np.uint8)
    found: int = _library().bytes_beside_field(array_address(source), source.size, number)
    return found


def _describe_fault(source: NDArray[np.uint8], at: int) -> str:
    left = source.size - at
    if left < PREFIX_BYTES:
        return f"{left} bytes left where a {PREFIX_BYTES}-byte string length was expected"
    length = int.from_bytes(source[at : at + PREFIX_BYTES].tobytes(), "little")
    return f"a string of {length} bytes runs past the end of the data, {left - PREFIX_BYTES} bytes on"

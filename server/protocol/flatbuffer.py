"""Reads tables of FlatBuffers, in which Arrow describes its messages. Every position is checked before it is read."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from veltair.errors import RequestError


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A table: fields by their number, each read where the table's own index says.

    Raises RequestError for a position outside of the buffer.

    >>> FlatTable.root(bytes([12, 0, 0, 0, 0, 0, 6, 0, 8, 0, 4, 0, 6, 0, 0, 0, 7, 0, 0, 0])).number(0, "<i")
    7
    """

    buffer: memoryview
    start: int
    index: int  # where the table's index begins
    fields: int  # in the index

    @classmethod
    def root(cls, buffer: bytes | memoryview) -> Self:
        view = memoryview(buffer)
        return cls.at(view, _unpack(view, "<I", 0))

    @classmethod
    def at(cls, buffer: memoryview, start: int) -> Self:
        index = start - _unpack(buffer, "<i", start)
        return cls(buffer, start, index, (_unpack(buffer, "<H", index) - 4) // 2)

    def number(self, field: int, form: str, default: int = 0) -> int:
        """A number, in struct's notation of its form."""
        place = self._place(field)
        return default if place is None else _unpack(self.buffer, form, place)

    def table(self, field: int) -> FlatTable | None:
        place = self._target(field)
        return None if place is None else FlatTable.at(self.buffer, place)

    def text(self, field: int, most: int) -> str:
        """A string of at most so many bytes; one that is not UTF-8 has replacement characters."""
        place = self._target(field)
        return "" if place is None else bytes(self._items(place, 1, most)).decode("utf-8", "replace")

    def tables(self, field: int, most: int) -> list[FlatTable]:
        """A vector of at most so many tables."""
        place = self._target(field)
        if place is None:
            return []
        found = np.frombuffer(self._items(place, 4, most), "<u4").tolist()
        return [FlatTable.at(self.buffer, place + 4 + 4 * i + offset) for i, offset in enumerate(found)]

    def pairs(self, field: int) -> NDArray[np.int64]:
        """A vector of structs of two int64, (count, 2)."""
        place = self._target(field)
        return np.frombuffer(b"" if place is None else self._items(place, 16), "<i8").reshape(-1, 2)

    def _items(self, place: int, size: int, most: int | None = None) -> memoryview:
        """The items of this size of a vector. Vectors may share memory, so that a small message could name many."""
        count, first = _unpack(self.buffer, "<I", place), place + 4
        if most is not None and count > most:
            raise RequestError(f"a vector of {count}; {most} are taken")
        if count * size > len(self.buffer) - first:
            raise RequestError("a vector passes the end of the message")
        return self.buffer[first : first + count * size]

    def _place(self, field: int) -> int | None:
        """Where a field is; None where the table has none."""
        if field >= self.fields:
            return None
        offset = _unpack(self.buffer, "<H", self.index + 4 + 2 * field)
        return self.start + offset if offset else None

    def _target(self, field: int) -> int | None:
        """Where the field's offset leads."""
        place = self._place(field)
        return None if place is None else place + _unpack(self.buffer, "<I", place)


def _unpack(buffer: memoryview, form: str, place: int) -> int:
    size = struct.calcsize(form)
    if not 0 <= place <= len(buffer) - size:
        raise RequestError("an offset passes the end of the message")
    found: tuple[Any, ...] = struct.unpack_from(form, buffer, place)
    return int(found[0])

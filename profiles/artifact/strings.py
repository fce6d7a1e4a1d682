"""Many strings in Arrow's layout: the bytes of all strings in sequence, and the offsets where each begins and ends.

The bytes may be anything, NUL and invalid UTF-8 included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from veltair.errors import RequestError, TooLargeError

MOST_BYTES = (1 << 31) - (1 << 12)  # offsets are int32


@dataclass(frozen=True, slots=True)
class Strings:
    """An array of strings; string i is data[offsets[i]:offsets[i + 1]]. Call `checked` first on untrusted ones.

    >>> strings = Strings.from_values(["ab", b"c"])
    >>> strings.offsets.tolist(), strings.tolist()
    ([0, 2, 3], [b'ab', b'c'])
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int32]  # (strings + 1), from 0, never decreasing

    @classmethod
    def from_values(cls, values: Iterable[bytes | str]) -> Self:
        """Pack these values; `str` is encoded as UTF-8. Raises TooLargeError beyond MOST_BYTES, TypeError."""
        encoded: list[bytes | str] | list[bytes] = list(values)
        try:
            data = b"".join(encoded)  # type: ignore[arg-type]
        except TypeError:  # some are `str`; a model of a thousand features has a hundred thousand, mostly of bytes
            encoded = [value.encode() if isinstance(value, str) else bytes(memoryview(value)) for value in encoded]
            data = b"".join(encoded)
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return cls.from_sizes(np.frombuffer(data, np.uint8), sizes)

    @classmethod
    def from_sizes(cls, data: NDArray[np.uint8], sizes: NDArray[np.integer]) -> Self:
        """Strings of these sizes in bytes, in sequence in `data`. Raises TooLargeError beyond MOST_BYTES."""
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        if offsets[-1] > MOST_BYTES:
            raise TooLargeError(f"{offsets[-1]} bytes of text; at most {MOST_BYTES} can be taken at once")
        return cls(data, offsets.astype(np.int32))

    @classmethod
    def concat(cls, parts: Sequence[Strings]) -> Self:
        """The strings of all parts, part after part. Raises TooLargeError beyond MOST_BYTES."""
        sizes = [np.diff(part.offsets) for part in parts]
        data = [part.data[: part.size] for part in parts]
        return cls.from_sizes(
            np.concatenate(data) if data else np.empty(0, np.uint8), np.concatenate([[0], *sizes])[1:]
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def size(self) -> int:
        """Total bytes of all strings."""
        return int(self.offsets[-1])

    def tolist(self) -> list[bytes]:
        """The strings as Python bytes."""
        content, offsets = self.data[: self.size].tobytes(), self.offsets.tolist()
        return [content[begin:end] for begin, end in pairwise(offsets)]

    def checked(self, name: str, count: int) -> Self:
        """Return itself if it has `count` strings whose offsets start at 0, never decrease and end within the data.

        Otherwise raises RequestError that names the input and the row.
        """
        where, offsets = f"input {name!r}", self.offsets
        if self.data.dtype != np.uint8 or offsets.dtype != np.int32 or offsets.shape != (count + 1,):
            raise RequestError(f"{where}: expected uint8 data and {count + 1} int32 offsets, got {offsets.shape}")
        if offsets[0] != 0:
            raise RequestError(f"{where}: offsets start at {int(offsets[0])}; expected 0")
        falls = np.flatnonzero(offsets[1:] < offsets[:-1])
        if falls.size:
            raise RequestError(f"{where}: offsets fall at row {int(falls[0])}")
        if self.size > self.data.size:
            row = int(np.flatnonzero(offsets > self.data.size)[0]) - 1
            raise RequestError(f"{where}: row {row} ends at byte {int(offsets[row + 1])} of {self.data.size}")
        return self

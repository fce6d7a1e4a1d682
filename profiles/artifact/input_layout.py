"""Where a query's inputs lie: a room for each tensor, and banks, in which the features of one type stand side by side.

One kernel reads all features, so those of a type are packed for the query's batch, feature by feature. Of a feature
that begins at `start`, a bank holds from `start * batch` on

    int64, float32   its values, (batch, width)
    int32            where each of its texts ends in its own bytes
    uint8            its texts, in `max_bytes * batch` bytes of room
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from veltair.errors import RequestError, TooLargeError
from veltair.profiles.artifact.manifest import Port
from veltair.profiles.artifact.strings import Strings

Arrays = Sequence[NDArray[Any]]  # one for each of `Manifest.rooms`, in its order


class Inputs(Protocol):
    """What has inputs, as a manifest has them."""

    @property
    def inputs(self) -> tuple[Port, ...]: ...

    @property
    def banks(self) -> tuple[Port, ...]: ...

    @property
    def rooms(self) -> tuple[Port, ...]: ...


@dataclass(frozen=True, slots=True)
class Room:
    """One input in the memory of a query."""

    port: Port
    values: NDArray[Any]  # of a string: where each ends, int32
    letters: NDArray[np.uint8] | None = None

    def put(self, value: NDArray[Any] | Strings) -> None:
        """Copy a value in. Raises RequestError for another type or size, TooLargeError for too much text."""
        name, count = self.port.name, self.values.size
        if self.letters is None:
            if isinstance(value, Strings) or value.dtype != self.values.dtype or value.size != count:
                got = f"{len(value)} strings" if isinstance(value, Strings) else f"{value.dtype} {list(value.shape)}"
                raise RequestError(f"input {name!r}: expected {self.values.dtype} {list(self.values.shape)}, got {got}")
            self.values[...] = value.reshape(self.values.shape)
            return
        if not isinstance(value, Strings):
            raise RequestError(f"input {name!r}: expected {count} strings, got {value.dtype} {list(value.shape)}")
        value.checked(name, count)
        if value.size > self.letters.size:
            raise TooLargeError(
                f"input {name!r}: {value.size} bytes of text in {count} rows; at most {self.port.max_bytes} a row, on "
                f"average, are taken: {self.letters.size}"
            )
        self.values[...] = value.offsets[1:]
        self.letters[: value.size] = value.data[: value.size]

    def strings(self) -> Strings:
        """The strings that were put in, without a copy of their bytes."""
        assert self.letters is not None
        return Strings(self.letters, np.concatenate([[0], self.values]).astype(np.int32))


def rooms(manifest: Inputs, arrays: Arrays, batch: int) -> list[Room]:
    """Views of each of the model's inputs for a query of this batch; `arrays` may have room for more."""
    own, banks = iter(arrays), _banks(manifest, arrays)
    return [_banked(port, banks, batch) if port.places else _alone(port, next(own), batch) for port in manifest.inputs]


def fill(manifest: Inputs, arrays: Arrays, values: Mapping[str, NDArray[Any] | Strings], batch: int) -> None:
    """Put a query's inputs, by name, where its kernels read them. Raises RequestError.

    Models have a thousand features: those of a bank of numbers, one after the other, are the bank, copied at once.
    """
    own, banks = iter(arrays), _banks(manifest, arrays)
    numbers: list[list[NDArray[Any]]] = [[] for _ in banks]
    for port in manifest.inputs:
        value = values.get(port.name)
        if value is None:
            raise RequestError(f"input {port.name!r} is missing")
        if not port.places:
            _alone(port, next(own), batch).put(value)
        elif (
            len(port.places) == 1
            and not isinstance(value, Strings)
            and value.dtype == banks[port.places[0].bank].dtype
            and value.size == batch * port.shape[1]
        ):
            numbers[port.places[0].bank].append(value.reshape(-1))
        else:
            _banked(port, banks, batch).put(value)
    for bank, parts in zip(banks, numbers, strict=True):
        if parts:
            np.concatenate(parts, out=_cut(bank, 0, (sum([part.size for part in parts]),)))


def merge(manifest: Inputs, target: Arrays, parts: Sequence[tuple[Arrays, int]]) -> None:
    """Queries as one: the rows of each part (its arrays, its batch) one after the other."""
    batch, row = sum(count for _, count in parts), 0
    alone = len(manifest.rooms) - len(manifest.banks)
    textual = [port for port in manifest.inputs if len(port.places) == 2]
    runs = [(bank, _runs(manifest, bank)) for bank in range(len(manifest.banks))]
    into = {port.name: room for port, room in zip(manifest.inputs, rooms(manifest, target, batch), strict=True)}
    used = dict.fromkeys((port.name for port in textual), 0)
    for arrays, count in parts:
        for whole, part, port in zip(target[:alone], arrays, manifest.rooms, strict=False):
            shape = port.shape[1:]
            _cut(whole, 0, (batch, *shape))[row : row + count] = _cut(part, 0, (count, *shape))
        for bank, stretches in runs:
            whole, part = target[alone + bank], arrays[alone + bank]
            for start, many, width in stretches:
                space = _cut(whole, start * batch, (many, batch, width))
                space[:, row : row + count] = _cut(part, start * count, (many, count, width))
        found = {room.port.name: room for room in rooms(manifest, arrays, count) if room.letters is not None}
        for name, room in found.items():
            letters, source = into[name].letters, room.letters
            assert letters is not None and source is not None
            size, place = min(max(int(room.values[-1]), 0), source.size), used[name]
            letters[place : place + size] = source[:size]
            into[name].values[row : row + count] += np.int32(place)
            used[name] += size
        row += count


def _runs(manifest: Inputs, bank: int) -> list[tuple[int, int, int]]:
    """Stretches of a bank with values a row of equal width: start, how many, width. Texts are copied otherwise."""
    places = ((place, port) for port in manifest.inputs for place in port.places[:1])
    inside = sorted((place.start, port.shape[1]) for place, port in places if place.bank == bank)
    found = []
    for width, members in groupby(inside, lambda entry: entry[1]):
        listed = list(members)
        found.append((listed[0][0], len(listed), width))
    return found


def _banks(manifest: Inputs, arrays: Arrays) -> Arrays:
    return arrays[len(manifest.rooms) - len(manifest.banks) :]


def _alone(port: Port, array: NDArray[Any], batch: int) -> Room:
    return Room(port, _cut(array, 0, port.at(batch)))


def _banked(port: Port, banks: Arrays, batch: int) -> Room:
    sizes = [(batch,), (port.max_bytes * batch,)] if len(port.places) == 2 else [(batch, port.shape[1])]
    placed = zip(port.places, sizes, strict=True)
    return Room(port, *[_cut(banks[place.bank], place.start * batch, size) for place, size in placed])


def _cut(array: NDArray[Any], start: int, shape: tuple[int, ...]) -> NDArray[Any]:
    return array.reshape(-1)[start : start + prod(shape)].reshape(shape)

"""The layout of a query's inputs in memory: a tensor for each input, and packed buffers for raw features.

One kernel reads all raw features, so the features of one type are packed side by side for the query's batch, feature by
feature. For a feature that begins at `start`, a packed buffer holds from `start * batch` on

    int64, float32   its values, (batch, width)
    int32            where each of its texts ends among its own bytes, (batch, width)
    uint8            its texts, row after row, in space for `max_bytes * batch` bytes
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

Arrays = Sequence[NDArray[Any]]  # one for each of `InputLayout.tensors`, in its order


class HasInputs(Protocol):
    """A description of a model's inputs: a manifest, a layer graph, or the layout of raw features."""

    @property
    def inputs(self) -> tuple[Port, ...]: ...

    @property
    def packed_buffers(self) -> tuple[Port, ...]: ...


@dataclass(frozen=True, slots=True)
class InputSlot:
    """The memory of one input in one query: a view of its tensor, or of its part of packed buffers.

    >>> slot = InputSlot(Port("x", "float32", (-1, 2)), np.zeros((1, 2), np.float32))
    >>> slot.put(np.array([[1, 2]], np.float32))
    >>> slot.values
    array([[1., 2.]], dtype=float32)
    """

    port: Port
    values: NDArray[Any]  # of strings: where each ends, int32
    text: NDArray[np.uint8] | None = None  # of strings: their bytes

    def put(self, value: NDArray[Any] | Strings) -> None:
        """Copy a value in. Raises RequestError for another type or size, TooLargeError for too much text."""
        name, count = self.port.name, self.values.size
        if self.text is None:
            if isinstance(value, Strings) or value.dtype != self.values.dtype or value.size != count:
                got = f"{len(value)} strings" if isinstance(value, Strings) else f"{value.dtype} {list(value.shape)}"
                raise RequestError(f"input {name!r}: expected {self.values.dtype} {list(self.values.shape)}, got {got}")
            self.values[...] = value.reshape(self.values.shape)
            return
        if not isinstance(value, Strings):
            raise RequestError(f"input {name!r}: expected {count} strings, got {value.dtype} {list(value.shape)}")
        value.checked(name, count)
        if value.size > self.text.size:
            raise TooLargeError(
                f"input {name!r}: {value.size} bytes of text in {len(self.values)} rows; at most "
                f"{self.port.max_bytes} a row, on average, are taken: {self.text.size}"
            )
        self.values[...] = value.offsets[1:].reshape(self.values.shape)
        self.text[: value.size] = value.data[: value.size]

    def strings(self) -> Strings:
        """The strings that were put in, without a copy of their bytes."""
        assert self.text is not None
        return Strings(self.text, np.concatenate([[0], self.values.reshape(-1)]).astype(np.int32))


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Where each input of a model lies in the arrays of a query.

    >>> layout = InputLayout(inputs=(Port("x", "float32", (-1, 2)),), packed_buffers=())
    >>> arrays = [np.zeros((3, 2), np.float32)]
    >>> layout.fill(arrays, {"x": np.ones((2, 2), np.float32)}, batch=2)
    >>> arrays[0].sum()
    np.float32(4.0)
    """

    inputs: tuple[Port, ...]
    packed_buffers: tuple[Port, ...]

    @classmethod
    def of(cls, model: HasInputs) -> InputLayout:
        """The layout of a manifest's inputs, or of anything else that has inputs."""
        return cls(model.inputs, model.packed_buffers)

    @property
    def tensors(self) -> tuple[Port, ...]:
        """The tensors that inputs lie in: inputs that have one each, then the packed buffers."""
        return (*(port for port in self.inputs if not port.locations), *self.packed_buffers)

    def slots(self, arrays: Arrays, batch: int) -> list[InputSlot]:
        """The memory of each input for a query of this batch; `arrays` may be larger than the batch needs."""
        own, packed = iter(arrays), self._packed(arrays)
        return [
            _packed_slot(port, packed, batch) if port.locations else _own_slot(port, next(own), batch)
            for port in self.inputs
        ]

    def fill(self, arrays: Arrays, values: Mapping[str, NDArray[Any] | Strings], batch: int) -> None:
        """Copy a query's inputs, by name, to where its kernels read them. Raises RequestError.

        Models have a thousand features: those of a packed buffer of numbers, one after the other, are the buffer, and
        are copied at once.
        """
        own, packed = iter(arrays), self._packed(arrays)
        numbers: list[list[NDArray[Any]]] = [[] for _ in packed]
        for port in self.inputs:
            value = values.get(port.name)
            if value is None:
                raise RequestError(f"input {port.name!r} is missing")
            if not port.locations:
                _own_slot(port, next(own), batch).put(value)
            elif (
                len(port.locations) == 1
                and not isinstance(value, Strings)
                and value.dtype == packed[port.locations[0].buffer].dtype
                and value.size == batch * port.shape[1]
            ):
                numbers[port.locations[0].buffer].append(value.reshape(-1))
            else:
                _packed_slot(port, packed, batch).put(value)
        for buffer, parts in zip(packed, numbers, strict=True):
            if parts:
                np.concatenate(parts, out=_section(buffer, 0, (sum([part.size for part in parts]),)))

    def merge(self, target: Arrays, parts: Sequence[tuple[Arrays, int]]) -> None:
        """Copy the inputs of several queries, each as (arrays, batch), into one: row after row, part after part."""
        batch, row = sum(count for _, count in parts), 0
        alone = len(self.tensors) - len(self.packed_buffers)
        textual = [port for port in self.inputs if len(port.locations) == 2]
        runs = [(buffer, self._runs(buffer)) for buffer in range(len(self.packed_buffers))]
        into = {slot.port.name: slot for slot in self.slots(target, batch)}
        used = dict.fromkeys((port.name for port in textual), 0)
        for arrays, count in parts:
            for whole, part, port in zip(target[:alone], arrays, self.tensors, strict=False):
                shape = port.shape[1:]
                _section(whole, 0, (batch, *shape))[row : row + count] = _section(part, 0, (count, *shape))
            for buffer, stretches in runs:
                whole, part = target[alone + buffer], arrays[alone + buffer]
                for start, many, width in stretches:
                    space = _section(whole, start * batch, (many, batch, width))
                    space[:, row : row + count] = _section(part, start * count, (many, count, width))
            found = {slot.port.name: slot for slot in self.slots(arrays, count) if slot.text is not None}
            for name, slot in found.items():
                text, source = into[name].text, slot.text
                assert text is not None and source is not None
                size, begin = min(max(int(slot.values[-1, -1]), 0), source.size), used[name]
                text[begin : begin + size] = source[:size]
                into[name].values[row : row + count] += np.int32(begin)
                used[name] += size
            row += count

    def _runs(self, buffer: int) -> list[tuple[int, int, int]]:
        """Runs of a packed buffer whose inputs have the same width: start, how many, width. Texts are copied apart."""
        located = ((at, port) for port in self.inputs for at in port.locations[:1])
        inside = sorted((at.start, port.shape[1]) for at, port in located if at.buffer == buffer)
        found = []
        for width, members in groupby(inside, lambda entry: entry[1]):
            listed = list(members)
            found.append((listed[0][0], len(listed), width))
        return found

    def _packed(self, arrays: Arrays) -> Arrays:
        return arrays[len(self.tensors) - len(self.packed_buffers) :]


def _own_slot(port: Port, array: NDArray[Any], batch: int) -> InputSlot:
    return InputSlot(port, _section(array, 0, port.at(batch)))


def _packed_slot(port: Port, packed: Arrays, batch: int) -> InputSlot:
    sizes = ((batch, port.shape[1]), (port.max_bytes * batch,))
    located = zip(port.locations, sizes, strict=False)
    return InputSlot(port, *[_section(packed[at.buffer], at.start * batch, size) for at, size in located])


def _section(array: NDArray[Any], start: int, shape: tuple[int, ...]) -> NDArray[Any]:
    return array.reshape(-1)[start : start + prod(shape)].reshape(shape)

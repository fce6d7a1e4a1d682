"""The one place where named tensors of a request become what a model takes, or a RequestError says why not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from veltair.errors import RequestError
from veltair.profiles.artifact.manifest import Port
from veltair.profiles.artifact.strings import Strings
from veltair.server.protocol.requests import (
    BYTES,
    DTYPES,
    Array,
    NamedTensor,
    Parameter,
    RequestedOutput,
    Tensor,
    content,
    datatype_of,
)

MICROSECOND_NS = 1000
MAX_TIMEOUT_US = 24 * 3600 * 1_000_000
MOST_LISTED = 32  # names of inputs in an error


class _Expected(NamedTuple):
    """What an input has to be, worked out once for all queries."""

    port: Port
    name: str
    datatype: str
    dtype: np.dtype[Any] | None  # of numbers whose raw bytes are taken as they are
    rest: tuple[int, ...]  # the shape behind the batch
    row_bytes: int  # 0 where there is no batch
    bounded: bool


class Inputs:
    """What a tenant's queries bring."""

    def __init__(self, model: str, ports: Sequence[Port], max_batch: int) -> None:
        self.ports = tuple(ports)
        self._model, self._max_batch = model, max_batch
        self._taken = {port.name for port in ports}
        self._expected = tuple(map(_expected, ports))

    def checked(self, tensors: Sequence[NamedTensor]) -> dict[str, Tensor]:
        """By input name: the model's dtypes and shapes, one batch for all, every id within its range."""
        model, given = self._model, {tensor.name: tensor for tensor in tensors}
        self._refuse_strange(given, tensors)
        checked: dict[str, Tensor] = {}
        batch, first = 0, ""  # and the input that set it
        for port, name, datatype, dtype, rest, row_bytes, bounded in self._expected:
            tensor = given.get(name)
            if tensor is None:
                raise RequestError(f"{model}: input {name!r} is missing; it takes {_names(self.ports)}")
            shape, data = tensor.shape, tensor.data
            if (  # nearly all of a thousand: numbers as raw bytes, of the batch that the first one had
                dtype is not None
                and batch
                and tensor.datatype == datatype
                and shape[:1] == (batch,)
                and shape[1:] == rest
                and isinstance(data, (bytes, memoryview))
                and len(data) == batch * row_bytes
            ):
                values: Tensor = np.frombuffer(data, dtype).reshape(shape)
            else:
                if tensor.datatype != datatype:
                    raise RequestError(f"{model}: input {name!r} is {datatype}, got {tensor.datatype!r:.40}")
                _check_shape(model, port, self._max_batch, shape)
                if port.shape[:1] == (-1,):
                    batch, first = (batch, first) if batch else (shape[0], name)
                    if shape[0] != batch:
                        raise RequestError(f"{model}: input {name!r} has batch {shape[0]}, {first!r} has {batch}")
                values = content(tensor)
            if bounded and not isinstance(values, Strings):
                _check_range(model, port, values)
            checked[name] = values
        return checked

    def _refuse_strange(self, given: Mapping[str, NamedTensor], tensors: Sequence[NamedTensor]) -> None:
        if len(given) != len(tensors):
            seen: set[str] = set()
            twice = next(t.name for t in tensors if t.name in seen or seen.add(t.name))  # type: ignore[func-returns-value]
            raise RequestError(f"{self._model}: input {twice!r:.80} is given twice")
        if not given.keys() <= self._taken:
            strange = next(name for name in given if name not in self._taken)
            raise RequestError(f"{self._model}: no input {strange!r:.80}; it takes {_names(self.ports)}")


def _expected(port: Port) -> _Expected:
    datatype, rest = datatype_of(port.dtype), port.shape[1:]
    raw = datatype not in (BYTES, "BOOL") and port.shape[:1] == (-1,)  # the bytes of a BOOL are looked at
    dtype = DTYPES[datatype] if raw else None
    row_bytes = math.prod(rest) * dtype.itemsize if dtype is not None else 0
    return _Expected(port, port.name, datatype, dtype, rest, row_bytes, port.low is not None or port.high is not None)


def _names(ports: Sequence[Port]) -> str:
    listed = ", ".join(port.name for port in ports[:MOST_LISTED])
    return listed if len(ports) <= MOST_LISTED else f"{listed}, … ({len(ports)} in all)"


def _check_shape(model: str, port: Port, max_batch: int, shape: tuple[int, ...]) -> None:
    expected = port.shape
    batched = expected[:1] == (-1,)
    fits = shape[1:] == expected[1:] and len(shape) == len(expected) if batched else shape == expected
    if not fits or (batched and not 1 <= shape[0] <= max_batch):
        want = ", ".join(f"1…{max_batch}" if dim == -1 else str(dim) for dim in expected)
        got = ", ".join(f"{dim}" for dim in shape[:16]) + (", …" if len(shape) > 16 else "")
        raise RequestError(f"{model}: input {port.name!r} has shape [{want}], got [{got}]")


def _check_range(model: str, port: Port, values: Array) -> None:
    low, high = port.low, port.high
    if (low is None and high is None) or not values.size:
        return
    if low == 0 and high is not None and values.dtype.kind == "i":  # below zero is far above when read unsigned
        if int(values.view(f"u{values.itemsize}").max()) <= high:
            return
    elif (low is None or int(values.min()) >= low) and (high is None or int(values.max()) <= high):
        return
    bad = np.zeros(values.shape, bool)
    if low is not None:
        bad |= values < low
    if high is not None:
        bad |= values > high
    at = np.unravel_index(int(bad.argmax()), values.shape)
    raise RequestError(
        f"{model}: input {port.name!r} has {values[at]} at {[int(i) for i in at]}; "
        f"ids go from {'any' if low is None else low} to {'any' if high is None else high}"
    )


def checked_outputs(model: str, ports: Sequence[Port], requested: Sequence[RequestedOutput]) -> tuple[str, ...]:
    """Names of the outputs to answer with, in the order asked for; all when none is named."""
    if not requested:
        return tuple(port.name for port in ports)
    names = tuple(output.name for output in requested)
    known = {port.name for port in ports}
    for index, name in enumerate(names):
        if name not in known:
            raise RequestError(f"{model}: no output {name!r:.80}; it gives {', '.join(sorted(known))}")
        if name in names[:index]:
            raise RequestError(f"{model}: output {name!r} is asked for twice")
    return names


def timeout_ns(parameters: Mapping[str, Parameter]) -> int | None:
    """The request's `timeout` (microseconds on the wire); None or 0 is none."""
    value = _count(parameters, "timeout", "microseconds", MAX_TIMEOUT_US)
    return value * MICROSECOND_NS if value else None


def priority(parameters: Mapping[str, Parameter]) -> int:
    """Checked, and so far without effect: a tenant's priority is the configuration's."""
    return _count(parameters, "priority", "a priority", 2**64 - 1)


def _count(parameters: Mapping[str, Parameter], key: str, meaning: str, most: int) -> int:
    value: Any = parameters.get(key, 0)
    if isinstance(value, str) and value.isdecimal() and len(value) < 21:
        value = int(value)  # gRPC clients send it as they like
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise RequestError(f"parameter {key!r} is {meaning}, an integer from 0 to {most}; got {value!r:.40}")
    return value


def text_parameter(parameters: Mapping[str, Parameter], key: str) -> str:
    value = parameters.get(key, "")
    if not isinstance(value, str):
        raise RequestError(f"parameter {key!r} is a string; got {value!r:.40}")
    return value

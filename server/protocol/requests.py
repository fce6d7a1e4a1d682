"""What both front ends speak of: Open Inference Protocol v2 requests, free of HTTP and of protobuf.

Decoders give an `InferRequest` whose tensors still hold the bytes that came in; `content` turns one into numpy
without a copy, or into strings. Whatever is wrong with the input raises RequestError, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.errors import RequestError, UnsupportedError
from veltair.profiles.artifact.strings import Strings
from veltair.server.protocol import length_prefixed

Parameter: TypeAlias = bool | int | float | str
Array: TypeAlias = NDArray[Any]
Tensor: TypeAlias = Array | Strings

BYTES = "BYTES"  # the datatype of strings, of any bytes

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}  # of numbers
_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}

# What asks for a feature that is not served, by the parameter's prefix.
_UNSUPPORTED = {"classification": "classification", "sequence_": "sequences"}
_REGION, _SIZE, _OFFSET = (f"shared_memory_{part}" for part in ("region", "byte_size", "offset"))


class Place(msgspec.Struct, frozen=True):
    """Where in a registered region of shared memory a tensor lies."""

    region: str
    offset: int
    size_bytes: int

    @property
    def parameters(self) -> dict[str, Parameter]:
        """As the protocol writes it."""
        found: dict[str, Parameter] = {_REGION: self.region, _SIZE: self.size_bytes}
        if self.offset:
            found[_OFFSET] = self.offset
        return found


class NamedTensor(msgspec.Struct, frozen=True):  # a query may have a thousand: a dataclass takes five times as long
    """An input as it came: raw little-endian bytes or where they lie, or numbers or strings where it was typed."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview | Array | Sequence[bytes] | Place


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    name: str
    binary: bool
    place: Place | None = None  # None: it comes with the answer


@dataclass(frozen=True, slots=True)
class InferRequest:
    id: str
    parameters: Mapping[str, Parameter]
    inputs: tuple[NamedTensor, ...]
    outputs: tuple[RequestedOutput, ...]  # none: all of them
    binary_output: bool = False  # what an output gets that is not listed


@cache
def datatype_of(dtype: str | np.dtype[Any]) -> str:
    """The protocol's word for a manifest's or numpy's dtype."""
    return BYTES if dtype == "string" else _DATATYPES[np.dtype(dtype)]


def dtype_of(datatype: str) -> np.dtype[Any]:
    """Of numbers. Raises RequestError."""
    try:
        return DTYPES[datatype]
    except KeyError:
        raise RequestError(f"unknown datatype {datatype!r:.40}; one of {', '.join(DTYPES)}, {BYTES}") from None


def content(tensor: NamedTensor) -> Tensor:
    """The tensor as numpy, a view of its bytes where they are raw; strings are always copied and have no shape.

    Raises RequestError when the bytes or elements are not those that datatype and shape ask for.
    """
    shape, data, where = tensor.shape, tensor.data, f"input {tensor.name!r}"
    assert not isinstance(data, Place)  # fetched before
    if min(shape, default=0) < 0:
        raise RequestError(f"{where}: shape {list(shape)} has a negative dimension")
    count = prod(shape)  # exact: Python's integers do not overflow
    if tensor.datatype == BYTES:
        return _strings(where, data, count)
    dtype = dtype_of(tensor.datatype)
    if isinstance(data, np.ndarray):
        if data.dtype != dtype:
            raise RequestError(f"{where}: expected {tensor.datatype} data, got {datatype_of(data.dtype)}")
        if data.size != count:
            raise RequestError(f"{where}: shape {list(shape)} takes {count} elements, got {data.size}")
        return data.reshape(shape)
    if not isinstance(data, (bytes, memoryview)):
        raise RequestError(f"{where}: expected {tensor.datatype} data, got {BYTES}")
    if len(data) != count * dtype.itemsize:
        raise RequestError(
            f"{where}: {tensor.datatype} of shape {list(shape)} takes {count * dtype.itemsize} bytes, got {len(data)}"
        )
    if tensor.datatype == "BOOL" and count and np.frombuffer(data, np.uint8).max() > 1:
        raise RequestError(f"{where}: a BOOL is one byte, 0 or 1")
    return np.frombuffer(data, dtype).reshape(shape)


def raw(values: Tensor) -> memoryview:
    """The bytes of a tensor as the protocol wants them: C order, little-endian, strings behind their lengths."""
    if isinstance(values, Strings):
        return length_prefixed.encode(values)
    # bfloat16 has no buffer format of its own, so every array goes out as plain bytes.
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _strings(where: str, data: bytes | memoryview | Array | Sequence[bytes], count: int) -> Strings:
    if isinstance(data, (bytes, memoryview)):
        return length_prefixed.decode(where, data, count)
    if isinstance(data, np.ndarray):
        raise RequestError(f"{where}: expected {BYTES} data, got {datatype_of(data.dtype)}")
    if len(data) != count:
        raise RequestError(f"{where}: expected {count} strings, got {len(data)}")
    return Strings.of(data)


def place_of(where: str, parameters: Mapping[str, Any]) -> Place | None:
    """What the parameters of an input or output say of shared memory.

    Raises RequestError, UnsupportedError for what else they ask for.
    """
    refuse_unsupported(where, parameters)
    if not parameters.keys() & {_REGION, _SIZE, _OFFSET}:
        return None
    region = parameters.get(_REGION)
    if not isinstance(region, str):
        raise RequestError(f"{where}: {_REGION} is the name of a region, got {region!r:.80}")
    return Place(region, _bytes(where, parameters, _OFFSET, 0), _bytes(where, parameters, _SIZE, None))


def _bytes(where: str, parameters: Mapping[str, Any], key: str, default: int | None) -> int:
    value = parameters.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RequestError(f"{where}: {key} is a count of bytes, got {value!r:.40}")
    return value


def refuse_unsupported(where: str, parameters: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for a parameter that asks for what this server does not do."""
    for key in parameters:
        for prefix, feature in _UNSUPPORTED.items():
            if key.startswith(prefix) and parameters[key]:
                raise UnsupportedError(f"{where}: {feature} ({key}) is not supported")

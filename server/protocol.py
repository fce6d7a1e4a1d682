"""What both front ends speak of: Open Inference Protocol v2 requests, free of HTTP and of protobuf.

Decoders give an `InferRequest` whose tensors still hold the bytes that came in; `array` turns one into numpy
without a copy. Whatever is wrong with the input raises RequestError, nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from veltair.errors import RequestError, UnsupportedError

Parameter: TypeAlias = bool | int | float | str
Array: TypeAlias = NDArray[Any]

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
    "BYTES": np.dtype("O"),
}
_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}

# What asks for a feature that is not served, by the parameter's prefix.
_UNSUPPORTED = {"shared_memory_": "shared memory", "classification": "classification", "sequence_": "sequences"}


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """An input as it came: raw little-endian bytes, or an array when it was typed (JSON, gRPC contents)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview | Array


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    name: str
    binary: bool


@dataclass(frozen=True, slots=True)
class InferRequest:
    id: str
    parameters: Mapping[str, Parameter]
    inputs: tuple[NamedTensor, ...]
    outputs: tuple[RequestedOutput, ...]  # none: all of them
    binary_output: bool = False  # what an output gets that is not listed


def datatype_of(dtype: str | np.dtype[Any]) -> str:
    """The protocol's word for a numpy dtype; `object` arrays are BYTES."""
    return _DATATYPES[np.dtype(dtype)]


def dtype_of(datatype: str) -> np.dtype[Any]:
    try:
        return DTYPES[datatype]
    except KeyError:
        raise RequestError(f"unknown datatype {datatype!r:.40}; one of {', '.join(DTYPES)}") from None


def array(tensor: NamedTensor) -> Array:
    """The tensor as numpy, a view of its bytes where they are raw (BYTES is always copied).

    Raises RequestError when the bytes or elements are not those that datatype and shape ask for.
    """
    shape, name = tensor.shape, tensor.name
    dtype = dtype_of(tensor.datatype)
    if any(dim < 0 for dim in shape):
        raise RequestError(f"input {name!r}: shape {list(shape)} has a negative dimension")
    count = prod(shape)  # exact: Python's integers do not overflow
    data = tensor.data
    if isinstance(data, np.ndarray):
        if data.dtype != dtype:
            raise RequestError(f"input {name!r}: expected {tensor.datatype} data, got {datatype_of(data.dtype)}")
        if data.size != count:
            raise RequestError(f"input {name!r}: shape {list(shape)} takes {count} elements, got {data.size}")
        return data.reshape(shape)
    if dtype.hasobject:
        items = _strings(name, data)
        if len(items) != count:
            raise RequestError(f"input {name!r}: shape {list(shape)} takes {count} strings, got {len(items)}")
        return objects(items).reshape(shape)
    if len(data) != count * dtype.itemsize:
        raise RequestError(
            f"input {name!r}: {tensor.datatype} of shape {list(shape)} takes {count * dtype.itemsize} bytes, "
            f"got {len(data)}"
        )
    if tensor.datatype == "BOOL" and count and np.frombuffer(data, np.uint8).max() > 1:
        raise RequestError(f"input {name!r}: a BOOL is one byte, 0 or 1")
    return np.frombuffer(data, dtype).reshape(shape)


def raw(values: Array) -> memoryview:
    """The bytes of an array as the protocol wants them: C order, little-endian, BYTES length-prefixed."""
    if values.dtype.hasobject:
        items = [v if isinstance(v, bytes) else str(v).encode() for v in values.reshape(-1)]
        return memoryview(b"".join(struct.pack("<I", len(item)) + item for item in items))
    # bfloat16 has no buffer format of its own, so every array goes out as plain bytes.
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def objects(items: list[bytes]) -> Array:
    """A flat object array, whatever the items' lengths."""
    values = np.empty(len(items), object)
    values[:] = items
    return values


def _strings(name: str, data: bytes | memoryview) -> list[bytes]:
    items, at, end = [], 0, len(data)
    while at < end:
        if at + 4 > end:
            raise RequestError(f"input {name!r}: {end - at} bytes left where a 4-byte string length was expected")
        (length,) = struct.unpack_from("<I", data, at)
        at += 4 + length
        if at > end:
            raise RequestError(f"input {name!r}: a string of {length} bytes runs past the end of the data")
        items.append(bytes(data[at - length : at]))
    return items


def refuse_unsupported(where: str, parameters: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for a parameter that asks for what this server does not do."""
    for key in parameters:
        for prefix, feature in _UNSUPPORTED.items():
            if key.startswith(prefix) and parameters[key]:
                raise UnsupportedError(f"{where}: {feature} ({key}) is not supported")

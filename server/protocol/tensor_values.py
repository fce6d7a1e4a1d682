"""Tensors between the bytes of the protocol and numpy."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from veltair.errors import RequestError, quoted
from veltair.profiles.artifact.strings import Strings
from veltair.server.protocol import length_prefixed
from veltair.server.protocol.datatypes import BYTES, Array, Tensor, datatype_name, numpy_dtype
from veltair.server.protocol.infer_request import NamedTensor, TensorLocation


def tensor_values(tensor: NamedTensor) -> Tensor:
    """The tensor as numpy, a view of its bytes where they are raw; strings are always copied and have no shape.

    Raises RequestError when the bytes or elements do not match datatype and shape.

    >>> tensor_values(NamedTensor("x", "INT32", (2,), bytes([1, 0, 0, 0, 2, 0, 0, 0])))
    array([1, 2], dtype=int32)
    """
    shape, data, where = tensor.shape, tensor.data, f"input {quoted(tensor.name)}"
    assert not isinstance(data, TensorLocation)  # its bytes were read before
    if min(shape, default=0) < 0:
        raise RequestError(f"{where}: shape {list(shape)} has a negative dimension")
    count = prod(shape)  # exact: Python's integers do not overflow
    if isinstance(data, Strings):
        return data.checked(tensor.name, count)
    if tensor.datatype == BYTES:
        return _strings(where, data, count)
    dtype = numpy_dtype(tensor.datatype)
    if isinstance(data, np.ndarray):
        if data.dtype != dtype:
            raise RequestError(f"{where}: expected {tensor.datatype} data, got {datatype_name(data.dtype)}")
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


def tensor_bytes(values: Tensor) -> memoryview:
    """The bytes of a tensor as the protocol sends them: C order, little-endian, strings behind their lengths."""
    if isinstance(values, np.ndarray) and values.dtype.hasobject:
        values = Strings.from_values(values.reshape(-1).tolist())
    if isinstance(values, Strings):
        return length_prefixed.encode(values)
    # bfloat16 has no buffer format of its own, so every array goes out as plain bytes.
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _strings(where: str, data: bytes | memoryview | Array | Sequence[bytes], count: int) -> Strings:
    if isinstance(data, (bytes, memoryview)):
        return length_prefixed.decode(where, data, count)
    if isinstance(data, np.ndarray):
        raise RequestError(f"{where}: expected {BYTES} data, got {datatype_name(data.dtype)}")
    if len(data) != count:
        raise RequestError(f"{where}: expected {count} strings, got {len(data)}")
    try:
        return Strings.from_values(data)
    except TypeError:
        other = next(each for each in data if not isinstance(each, (bytes, str)))
        raise RequestError(f"{where}: expected texts or bytes, got {type(other).__name__}") from None

"""The protocol's datatypes and numpy's."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from veltair.errors import RequestError, quoted
from veltair.profiles.artifact.strings import Strings

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
_DATATYPES = {dtype: name for name, dtype in DTYPES.items()} | {np.dtype(object): BYTES}  # texts of an output


@cache
def datatype_name(dtype: str | np.dtype[Any]) -> str:
    """The protocol's name of a manifest's or numpy's dtype.

    >>> datatype_name("float32"), datatype_name("string")
    ('FP32', 'BYTES')
    """
    return BYTES if dtype == "string" else _DATATYPES[np.dtype(dtype)]


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """The dtype of a datatype of numbers. Raises RequestError."""
    try:
        return DTYPES[datatype]
    except KeyError:
        raise RequestError(f"unknown datatype {quoted(datatype, 40)}; one of {', '.join(DTYPES)}, {BYTES}") from None

"""Loads small C libraries: plain C for ctypes, built as extensions when the package is installed."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from typing import Any

from numpy.typing import NDArray

from veltair.errors import VeltairError


@cache
def native_library(module: str) -> ctypes.CDLL:
    """The C functions of an extension module, which run without the interpreter lock.

    Raises VeltairError where it was not built.

    >>> native_library("veltair.server.protocol._length_prefixed").prefix.__name__
    'prefix'
    """
    return ctypes.CDLL(library_path(module))


def library_path(module: str) -> str:
    """The file of an extension module, which is not loaded. Raises VeltairError where it was not built."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise VeltairError("veltair's native part is missing: install the package with pip, which builds it with gcc")
    return spec.origin


def array_address(array: NDArray[Any]) -> int:
    """The address of its first byte, valid while the array lives, in a third of the time of `array.ctypes.data`."""
    address: int = array.__array_interface__["data"][0]
    return address

"""TVM's runtime library, without its compiler and without its Python package, which takes 0.4 s of CPU time to import.

Kernels need the library's symbols, and we its loader; both are behind `tvm_ffi`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tvm_ffi

from veltair.errors import VeltairError

RUNTIME = "lib/libtvm_runtime.so"  # in the folder of the package


def load_library(path: str) -> Any:
    """The module of a shared library; the library is unloaded when the module and its functions are gone.

    TVM's own `runtime.load_module` follows links, of which /proc/self/fd/N leads to no file, looks at the end of the
    name, and never unloads. As long as a library is loaded its name must not come to mean another: the system takes
    that for the same.
    """
    _load_runtime()
    return tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(path, "so")


@cache
def _load_runtime() -> None:
    """Load TVM's runtime for all libraries that come after it. Raises VeltairError where it is not installed."""
    spec = find_spec("tvm")  # finds the package, and imports nothing of it
    if spec is None or spec.origin is None:
        raise VeltairError("TVM is missing: install the package apache-tvm")
    ctypes.CDLL(str(Path(spec.origin).parent / RUNTIME), ctypes.RTLD_GLOBAL)

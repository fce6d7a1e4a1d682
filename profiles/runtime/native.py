"""The native part of execution, `pinned_threads.c` and `block_runner.c`: one small library behind TVM's FFI."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from veltair.machine.native_library import library_path
from veltair.profiles.runtime.tvm_runtime import load_library


@cache
def library() -> Any:
    """The loaded module; its functions are subscripts. Raises VeltairError where it was not built."""
    path = library_path("veltair.profiles.runtime._native")
    module = load_library(path)
    # It stays loaded once the module is gone, which is when Python ends: its threads would go on without their code.
    ctypes.CDLL(path)
    return module


def address(name: str) -> int:
    """That of a function, for native code that calls it through TVM's FFI."""
    library()
    function = getattr(ctypes.CDLL(library_path("veltair.profiles.runtime._native")), f"__tvm_ffi_{name}")
    return ctypes.cast(function, ctypes.c_void_p).value or 0

"""TVM's runtime without its compiler: a third of the memory, half of the start, and nothing to compile with."""

from __future__ import annotations

import os
from typing import Any

import tvm_ffi

_INHERITED = "TVM_USE_RUNTIME_LIB" in os.environ
os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")

from tvm import runtime  # noqa: E402  the variable is read when TVM is loaded

if not _INHERITED:
    del os.environ["TVM_USE_RUNTIME_LIB"]  # meant for this import, not for the children of this process

__all__ = ["load_library", "runtime"]


def load_library(path: str) -> Any:
    """The module of a shared library; the library is unloaded when the module and its functions are gone.

    `runtime.load_module` follows links, of which /proc/self/fd/N leads to no file, looks at the end of the name, and
    never unloads. As long as a library is loaded its name must not come to mean another: the system takes that for the
    same.
    """
    return tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(path, "so")

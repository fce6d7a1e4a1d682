"""The native part of execution, `pinned_threads.c` and `block_runner.c`: one small library behind TVM's FFI."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from typing import Any

from veltair.errors import VeltairError
from veltair.profiles.runtime.tvm_runtime import load_library


@cache
def library() -> Any:
    """The loaded module; its functions are subscripts. Raises VeltairError where it was not built."""
    spec = find_spec("veltair.profiles.runtime._native")
    if spec is None or spec.origin is None:
        raise VeltairError("veltair's native part is missing: install the package with pip, which builds it with gcc")
    module = load_library(spec.origin)
    # It stays loaded once the module is gone, which is when Python ends: its threads would go on without their code.
    ctypes.CDLL(spec.origin)
    return module

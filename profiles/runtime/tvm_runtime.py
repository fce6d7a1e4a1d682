"""TVM's runtime without its compiler: a third of the memory, half of the start, and nothing to compile with."""

from __future__ import annotations

import os

_INHERITED = "TVM_USE_RUNTIME_LIB" in os.environ
os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")

from tvm import runtime  # noqa: E402  the variable is read when TVM is loaded

if not _INHERITED:
    del os.environ["TVM_USE_RUNTIME_LIB"]  # meant for this import, not for the children of this process

__all__ = ["runtime"]

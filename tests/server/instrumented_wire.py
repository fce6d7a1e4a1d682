"""A plugin for pytest, `-p instrumented_wire`: INSTRUMENTED_WIRE names the library of the I/O threads."""

from __future__ import annotations

import ctypes
import os

from veltair.server.wire import native

native.native_library = lambda module: ctypes.CDLL(os.environ["INSTRUMENTED_WIRE"])  # type: ignore[attr-defined]

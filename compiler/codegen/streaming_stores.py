"""Stores that bypass the caches: for results too large to be still there when they are read.

TVM has no such store, so that a function in LLVM's own language makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr

_STORE = """
define internal void @veltair_stream(ptr %to, <16 x float> %value) alwaysinline {
  store <16 x float> %value, ptr %to, align 64, !nontemporal !0
  ret void
}
!0 = !{i32 1}
"""


def with_streaming_stores(body: Callable[..., None]) -> Callable[..., None]:
    """The body of a function that calls `stream_vector`."""

    def with_import(*buffers: Any) -> None:
        with T.attr(T.int32(0), "pragma_import_llvm", _STORE):
            body(*buffers)

    return with_import


def stream_vector(element: Expr, value: Expr) -> None:
    """Store 16 floats where an element of a buffer begins, which is a whole number of cache lines from its begin."""
    T.evaluate(T.call_extern("void", "veltair_stream", T.address_of(element), value))


def end_stream() -> None:
    """What was streamed before becomes visible before what is stored behind this."""
    T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse.sfence"))

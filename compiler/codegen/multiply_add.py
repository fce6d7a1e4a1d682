"""One step of a reduction in vectors of 16 sums: a product of floats, or the sum of two products of bfloat16 values.

The second is AVX-512-bf16's dot product. One operand is an input in all lanes, with its right neighbour where they are
bfloat16; the other is a vector of weights of 16 outputs, packed by `pack_bf16_pairs` along the reduction.

TVM 0.27 makes integers of bfloat16 operands before LLVM sees them, so the instruction is called by a function in LLVM's
own language, which takes them as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import LANES, Expr

# Values of the reduction that one step takes, by the type of the input.
VALUES_PER_STEP: Mapping[str, int] = {"float32": 1, "uint16": 2}
_DOT = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define internal <16 x float> @veltair_dot(<16 x float> %sums, <16 x i32> %left, <16 x i32> %right) alwaysinline {
  %a = bitcast <16 x i32> %left to <32 x bfloat>
  %b = bitcast <16 x i32> %right to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %r
}
"""


def import_dot_product() -> AbstractContextManager[Any]:
    """A frame of code in which `multiply_add` takes pairs of bfloat16 values."""
    frame: AbstractContextManager[Any] = T.attr(T.int32(0), "pragma_import_llvm", _DOT)
    return frame


def reduction_body(dtype: str, body: Callable[..., None]) -> Callable[..., None]:
    """The body of a function whose reductions take inputs of this type; with the dot product where it needs one."""
    if VALUES_PER_STEP[dtype] == 1:
        return body

    def with_dot_product(*buffers: Any) -> None:
        with import_dot_product():
            body(*buffers)

    return with_dot_product


def reduction_steps(depth: int, dtype: str) -> Iterator[tuple[Expr, int]]:
    """All steps of a reduction over `depth` inputs as (step, how many values it takes): a loop, then one more step for
    what is left of an odd depth."""
    with T.serial(0, depth // VALUES_PER_STEP[dtype]) as k:
        yield k, VALUES_PER_STEP[dtype]
    if depth % VALUES_PER_STEP[dtype]:
        yield T.int32(depth // VALUES_PER_STEP[dtype]), 1


def broadcast_input(buffer: Any, *index: Expr, count: int = 0) -> Expr:
    """An input in all lanes. Of bfloat16, it comes with its right neighbour, or with zero if `count` is 1."""
    if buffer.dtype != "uint16":
        return T.broadcast(buffer[index], LANES)
    if count == 1:
        both = T.cast(buffer[index], "int32")
    else:
        both = T.reinterpret("int32", buffer[(*index[:-1], T.ramp(index[-1], 1, 2))])
    return T.broadcast(both, LANES)


def multiply_add(sums: Expr, value: Expr, weights: Expr) -> Expr:
    """16 sums with one step more."""
    if "float" in str(weights.ty):
        return sums + value * weights
    return T.call_extern("float32x16", "veltair_dot", sums, value, weights)

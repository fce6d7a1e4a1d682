"""One step of a reduction in vectors of 16 sums: a product of floats, or the sum of two products of bfloat16 values.

The second is AVX-512-bf16's dot product. What is multiplied is an input in all lanes, with its right neighbour where
they are bfloat16, by weights of 16 outputs, packed in `pairs` of the reduction.

TVM 0.27 makes integers of bfloat16 operands before LLVM sees them, so the instruction is called by a function in LLVM's
own language, which takes them as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.kernels.codegen.emit import LANES, Expr, pad_to, to_bf16_bits

STEP: Mapping[str, int] = {"float32": 1, "uint16": 2}  # numbers of the reduction that a step takes, by the input's type
_DOT = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define internal <16 x float> @veltair_dot(<16 x float> %sums, <16 x i32> %left, <16 x i32> %right) alwaysinline {
  %a = bitcast <16 x i32> %left to <32 x bfloat>
  %b = bitcast <16 x i32> %right to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %r
}
"""


def with_dots() -> AbstractContextManager[Any]:
    """Code in which `multiply_add` takes pairs."""
    frame: AbstractContextManager[Any] = T.attr(T.int32(0), "pragma_import_llvm", _DOT)
    return frame


def reducing(dtype: str, body: Callable[..., None]) -> Callable[..., None]:
    """The body of a primitive that takes steps over inputs of this type."""
    if STEP[dtype] == 1:
        return body

    def within(*buffers: Any) -> None:
        with with_dots():
            body(*buffers)

    return within


def steps(depth: int, dtype: str) -> Iterator[tuple[Expr, int]]:
    """All steps of a reduction over inputs of a type, (which, how many numbers it takes): in a loop, and one more for
    what is left of an odd depth."""
    with T.serial(0, depth // STEP[dtype]) as k:
        yield k, STEP[dtype]
    if depth % STEP[dtype]:
        yield T.int32(depth // STEP[dtype]), 1


def spread(buffer: Any, *index: Expr, count: int = 0) -> Expr:
    """The input here in all lanes, of bfloat16 with its right neighbour; with zero where the step takes but one."""
    if buffer.dtype != "uint16":
        return T.broadcast(buffer[index], LANES)
    if count == 1:
        both = T.cast(buffer[index], "int32")
    else:
        both = T.reinterpret("int32", buffer[(*index[:-1], T.ramp(index[-1], 1, 2))])
    return T.broadcast(both, LANES)


def multiply_add(sums: Expr, value: Expr, tap: Expr) -> Expr:
    """The sums with one step more."""
    if "float" in str(tap.ty):
        return sums + value * tap
    return T.call_extern("float32x16", "veltair_dot", sums, value, tap)


def pairs(weight: NDArray[np.float32], axis: int) -> NDArray[np.int32]:
    """Neighbours along an axis rounded to bfloat16, two in one number, the first one below; zero behind the last."""
    bits = np.moveaxis(to_bf16_bits(pad_to(weight, axis, 2)), axis, 0).astype(np.uint32)
    return np.ascontiguousarray(np.moveaxis(bits[::2] | bits[1::2] << 16, 0, axis)).view(np.int32)

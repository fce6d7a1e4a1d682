"""bfloat16 as the bits of uint16: conversions of vectors (TIR expressions) and of numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, broadcast_uint32, vector_type


def bf16_to_float32(bits: Expr, count: int = LANES) -> Expr:
    """The floats whose upper halves are `bits`. Exact."""
    wide = T.shift_left(T.cast(bits, vector_type("uint32", count)), broadcast_uint32(16, count))
    return T.reinterpret(vector_type("float32", count), wide)


def float32_to_bf16(value: Expr, count: int = LANES) -> Expr:
    """Floats rounded to nearest, ties to even.

    16, 8 or 1 lanes take an instruction of AVX-512-bf16. Other counts run on any CPU, and their lanes must not be NaN.
    """
    if count == 1:
        return T.Shuffle([float32_to_bf16(broadcast(value))], [0])
    if count not in (8, LANES):
        bits = T.bind(T.reinterpret(vector_type("uint32", count), value))
        return T.cast(round_bits_to_bf16(bits, count), vector_type("uint16", count))
    name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * count}"
    return T.reinterpret(f"uint16x{count}", T.call_llvm_pure_intrin(f"bfloat16x{count}", name, value))


def float32_pair_to_bf16(low: Expr, high: Expr) -> Expr:
    """Two vectors of 16 floats rounded by one instruction of AVX-512-bf16 to 32 lanes, those of `low` first."""
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"  # its second operand becomes the lower half
    return T.reinterpret("uint16x32", T.call_llvm_pure_intrin("bfloat16x32", name, high, low))


def round_bits_to_bf16(bits: Expr, count: int = LANES) -> Expr:
    """The bits (uint32) of finite or infinite floats rounded to the upper half, ties to even; on any CPU."""
    odd = T.bitwise_and(T.shift_right(bits, broadcast_uint32(16, count)), broadcast_uint32(1, count))
    return T.shift_right(bits + broadcast_uint32(0x7FFF, count) + odd, broadcast_uint32(16, count))


def array_to_bf16(array: NDArray[Any]) -> NDArray[np.uint16]:
    """An array of float32 rounded to nearest, ties to even.

    >>> [hex(bits) for bits in array_to_bf16(np.array([1.0, -2.0], np.float32))]
    ['0x3f80', '0xc000']
    """
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

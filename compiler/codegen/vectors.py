"""Vectors of 16 lanes as TIR expressions.

Kernels are generated as TIR by the IR builder: loops that run are builder frames, loops of a register tile are
Python's and leave straight-line code, which LLVM keeps in registers.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

LANES = 16  # floats in a vector; one AVX-512 register, two AVX2 ones
Expr = Any  # a TIR expression


def vector_type(scalar: str, count: int) -> str:
    """The TIR type of `count` lanes; one lane is a scalar.

    >>> vector_type("float32", 16), vector_type("float32", 1)
    ('float32x16', 'float32')
    """
    return f"{scalar}x{count}" if count > 1 else scalar


def ramp(index: Expr, count: int = LANES) -> Expr:
    """The indices of `count` consecutive elements from `index` on."""
    return T.ramp(index, 1, count) if count > 1 else index


def broadcast(value: Expr | float, count: int = LANES) -> Expr:
    """One number in every lane. A Python number becomes a float32."""
    value = T.float32(value) if isinstance(value, (int, float)) else value
    return T.broadcast(value, count) if count > 1 else value


def broadcast_uint32(value: int, count: int = LANES) -> Expr:
    """One unsigned integer in every lane."""
    return broadcast(T.uint32(value), count)


def permute_lanes(values: Expr, lanes: Expr) -> Expr:
    """Lane i of the result is lane `lanes[i]` (int32x16) of 16 floats. Needs AVX-512."""
    return T.call_llvm_pure_intrin("float32x16", "llvm.x86.avx512.permvar.sf.512", values, lanes)

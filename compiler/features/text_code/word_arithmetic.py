"""64-bit words in generated code: constants, arithmetic modulo 2**64, and values kept in registers."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr, ramp
from veltair.compiler.features.fingerprint import WORD


def u64_constant(value: int) -> Expr:
    """A 64-bit constant; TVM refuses literals of 2**63 and above."""
    return T.uint64(value) if value < 1 << 63 else T.reinterpret("uint64", T.int64(value - (1 << 64)))


def u64(value: Expr) -> Expr:
    return T.cast(value, "uint64")


def add(first: Expr, *others: Expr) -> Expr:
    """The sum modulo 2**64.

    TVM tells LLVM that no sum or product overflows, so those that may overflow are computed in 128 bits.
    """
    total = T.cast(first, "uint128")
    for other in others:
        total = T.cast(T.cast(total + T.cast(other, "uint128"), "uint64"), "uint128")
    return T.cast(total, "uint64")


def mul(a: Expr, b: Expr) -> Expr:
    """The product modulo 2**64, computed in 128 bits as in `add`."""
    return T.cast(T.cast(a, "uint128") * T.cast(b, "uint128"), "uint64")


def remainder(value: Expr, divisor: Expr, reciprocal: Expr) -> Expr:
    """`value` modulo a divisor whose reciprocal floor((2**64 - 1) / divisor) is known, without a division.

    The upper word of value * reciprocal is the quotient or one less, so one subtraction at most is left to do.
    """
    value = in_register(value)
    high = T.shift_right(T.cast(value, "uint128") * T.cast(reciprocal, "uint128"), T.cast(u64_constant(64), "uint128"))
    rest = in_register(value - mul(T.cast(high, "uint64"), divisor))
    return T.Select(rest >= divisor, add(rest, mul(divisor, u64_constant(WORD))), rest)


def rotate(value: Expr, by: int) -> Expr:
    """The word rotated right by a number of bits."""
    value = in_register(value)
    return T.bitwise_or(T.shift_right(value, u64_constant(by)), T.shift_left(value, u64_constant(64 - by)))


def in_register(value: Expr) -> Expr:
    """A value in a variable of its own, which LLVM makes a register.

    TVM looks through bindings, and through chains of them in exponential time. Local scope would be memory of the heap.
    """
    kind = str(value.ty.dtype if hasattr(value, "ty") and hasattr(value.ty, "dtype") else value.dtype)
    element, _, count = kind.partition("x")
    variable = T.alloc_buffer((int(count or 1),), element, scope="global")
    at = ramp(0, int(count)) if count else 0
    T.buffer_store(variable, value, [at])
    return variable[at]

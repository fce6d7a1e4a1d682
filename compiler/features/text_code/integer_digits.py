"""Integers to decimal text, since a hash or vocabulary takes an integer as the text that spells it."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import Expr, ramp
from veltair.compiler.features.text_code.word_arithmetic import add, in_register, u64, u64_constant

DIGITS = 24  # bytes of scratch for a decimal number: three words of eight digits
LONGEST = 20  # characters of an int64: a sign and 19 digits
ASCII_ZEROS = 0x3030_3030_3030_3030  # "0" in each byte of a word


def emit_digits(value: Expr, digits: Any) -> tuple[Expr, Expr]:
    """Writes an int64 as decimal digits to the end of scratch (DIGITS,): where they begin, and how many."""
    value = in_register(value)
    negative = T.bind(value < T.int64(0))
    # The magnitude; that of -2**63 is only one as an unsigned number.
    size = in_register(T.Select(negative, add(T.bitwise_not(u64(value)), u64_constant(1)), u64(value)))
    # In three groups of eight digits, a word each: value = (top * 10**8 + middle) * 10**8 + low.
    upper = in_register(T.floordiv(size, u64_constant(10**8)))
    top = in_register(T.floordiv(upper, u64_constant(10**8)))
    groups = (top, upper - top * u64_constant(10**8), size - upper * u64_constant(10**8))
    words = [_eight_digits(group) for group in groups]
    for place, digit in enumerate(words):
        ascii_digits = T.bitwise_or(digit, u64_constant(ASCII_ZEROS))
        T.buffer_store(digits, T.reinterpret("uint8x8", ascii_digits), [ramp(place * 8, 8)])
    first = [_leading_zeros(digit) for digit in words]
    skipped = T.Select(
        words[0] != u64_constant(0),
        first[0],
        T.Select(words[1] != u64_constant(0), first[1] + 8, T.min(first[2] + 16, T.int32(DIGITS - 1))),
    )
    begin = in_register(in_register(skipped) - T.cast(negative, "int32"))
    with when(negative):
        T.buffer_store(digits, T.uint8(ord("-")), [begin])
    return begin, in_register(DIGITS - begin)


def count_trailing_zeros(value: Expr, bits: int) -> Expr:
    """Zeros below the lowest bit that is set; `bits` where none is."""
    kind = f"uint{bits}"
    return T.call_llvm_pure_intrin(kind, f"llvm.cttz.i{bits}", value, T.bool(False))


def _eight_digits(value: Expr) -> Expr:
    """The digits 0-9 of a number below 10**8, one in each byte of a word, the first one lowest.

    The number is halved three times, all parts of the word at once: into 2 x 4 digits in 32 bits each, 4 x 2 digits in
    16 bits each, 8 x 1 digit in 8 bits each. Divisions are multiplications by a rounded reciprocal and a shift, exact
    for numbers so small: 10486 / 2**20 is 1 / 100, 103 / 2**10 is 1 / 10. A mask cuts off what a part's product
    leaves in the lower bits of the next part.
    """
    value = in_register(value)
    high = in_register(T.floordiv(value, u64_constant(10_000)))
    x = in_register(T.bitwise_or(high, T.shift_left(value - high * u64_constant(10_000), u64_constant(32))))
    t = in_register(
        T.bitwise_and(T.shift_right(x * u64_constant(10486), u64_constant(20)), u64_constant(0x7F_0000_007F))
    )
    x = in_register(T.bitwise_or(T.shift_left(x - t * u64_constant(100), u64_constant(16)), t))
    t = in_register(
        T.bitwise_and(T.shift_right(x * u64_constant(103), u64_constant(10)), u64_constant(0x000F_000F_000F_000F))
    )
    return in_register(T.bitwise_or(T.shift_left(x - t * u64_constant(10), u64_constant(8)), t))


def _leading_zeros(digits: Expr) -> Expr:
    """Digits of a word before the first that is not 0; 8 for zeros alone."""
    return in_register(T.cast(T.shift_right(count_trailing_zeros(digits, 64), u64_constant(3)), "int32"))

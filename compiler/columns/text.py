"""Code over bytes: fingerprints, decimal digits, tokens between separators, numbers.

Nothing outside of [begin, begin + size) is read, whatever the bytes are, and nothing is stored of a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.columns.fingerprint import K0, K1, K2
from veltair.compiler.kernels.emit import Expr, lanes, when

BLOCK = 32  # bytes compared with the separator at once
DIGITS = 24  # bytes of scratch for a decimal number: three words of eight digits
POWERS = 340  # of ten, each way


def word(value: int) -> Expr:
    """A 64-bit constant; TVM refuses literals of 2**63 and above."""
    return T.uint64(value) if value < 1 << 63 else T.reinterpret("uint64", T.int64(value - (1 << 64)))


def u64(value: Expr) -> Expr:
    return T.cast(value, "uint64")


def held(value: Expr) -> Expr:
    """A value in a variable of its own: TVM looks through bindings, and through chains of them exponentially."""
    kind = value.ty.dtype if hasattr(value, "ty") and hasattr(value.ty, "dtype") else value.dtype
    variable = T.alloc_buffer((1,), str(kind), scope="local")
    T.buffer_store(variable, value, [0])
    return variable[0]


def rotate(value: Expr, by: int) -> Expr:
    value = held(value)
    return T.bitwise_or(T.shift_right(value, word(by)), T.shift_left(value, word(64 - by)))


def shift_mix(value: Expr) -> Expr:
    value = held(value)
    return held(T.bitwise_xor(value, T.shift_right(value, word(47))))


def mix(u: Expr, v: Expr, mul: Expr) -> Expr:
    v = held(v)
    first = shift_mix(T.bitwise_xor(u, v) * mul)
    return shift_mix(T.bitwise_xor(v, first) * mul) * mul


def fetch(text: Any, at: Expr) -> Expr:
    return held(T.reinterpret("uint64", text[lanes(at, 8)]))


def fetch32(text: Any, at: Expr) -> Expr:
    return held(u64(T.reinterpret("uint32", text[lanes(at, 4)])))


def fingerprint(text: Any, begin: Expr, size: Expr, out: Any, longest: int | None = None) -> None:
    """Fingerprint64 of `size` bytes to out[0]. `longest` leaves out the classes that cannot occur."""
    wide = held(u64(size))
    mul = held(word(K2) + wide * word(2))
    end = held(begin + size)

    def give(value: Expr) -> None:
        T.buffer_store(out, value, [0])

    with T.If(size <= 16):
        with T.Then(), T.If(size >= 8):
            with T.Then():
                a, b = fetch(text, begin) + word(K2), fetch(text, end - 8)
                give(mix(rotate(b, 37) * mul + a, (rotate(a, 25) + b) * mul, mul))
            with T.Else(), T.If(size >= 4):
                with T.Then():
                    give(mix(wide + T.shift_left(fetch32(text, begin), word(3)), fetch32(text, end - 4), mul))
                with T.Else(), T.If(size > 0):
                    with T.Then():
                        first, middle, last = (u64(text[at]) for at in (begin, begin + T.shift_right(size, 1), end - 1))
                        y = first + T.shift_left(middle, word(8))
                        z = wide + T.shift_left(last, word(2))
                        give(shift_mix(T.bitwise_xor(y * word(K2), z * word(K0))) * word(K2))
                    with T.Else():
                        give(word(K2))
        with T.Else():
            if longest is not None and longest <= 32:
                give(_middle(text, begin, end, mul, K1)[2])
            else:
                with T.If(size <= 32):
                    with T.Then():
                        give(_middle(text, begin, end, mul, K1)[2])
                    with T.Else(), T.If(size <= 64):
                        with T.Then():
                            a, y, z = _middle(text, begin, end, mul, K2)
                            e, f = held(fetch(text, begin + 16) * mul), fetch(text, begin + 24)
                            g = held((y + fetch(text, end - 32)) * mul)
                            h = held((z + fetch(text, end - 24)) * mul)
                            give(mix(rotate(e + f, 43) + rotate(g, 30) + h, e + rotate(f + a, 18) + g, mul))
                        with T.Else():
                            _long(text, begin, size, out)


def _middle(text: Any, begin: Expr, end: Expr, mul: Expr, first: int) -> tuple[Expr, Expr, Expr]:
    """What lengths of 17 to 32 and of 33 to 64 have in common: (a, y, z), z being the hash of the former."""
    a, b = held(fetch(text, begin) * word(first)), fetch(text, begin + 8)
    c, d = held(fetch(text, end - 8) * mul), held(fetch(text, end - 16) * word(K2))
    y = held(rotate(a + b, 43) + rotate(c, 30) + d)
    return a, y, held(mix(y, a + rotate(b + word(K2), 18) + c, mul))


def _long(text: Any, begin: Expr, size: Expr, out: Any) -> None:
    """More than 64 bytes: a state of seven words, 64 bytes at a time, the last 64 over again."""
    state = T.alloc_buffer((7,), "uint64", scope="local")  # x, y, z, v, w

    def put(*values: Expr) -> None:
        for place, value in enumerate(values):
            T.buffer_store(state, value, [place])

    def weak(at: Expr, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        w, x, y, z = (fetch(text, at + step) for step in (0, 8, 16, 24))
        first = held(a + w)
        turned = rotate(b + first + z, 21)
        third = held(first + x + y)
        return held(third + z), held(rotate(third, 44) + turned + first)

    def block(at: Expr, mul: Expr, factor: int) -> None:
        x, y, z, v0, v1, w0, w1 = (held(state[place]) for place in range(7))
        x = held(rotate(x + y + v0 + fetch(text, at + 8), 37) * mul)
        y = held(rotate(y + v1 + fetch(text, at + 48), 42) * mul)
        x = held(T.bitwise_xor(x, w1 * word(factor)))
        y = held(y + v0 * word(factor) + fetch(text, at + 40))
        z = held(rotate(z + w0, 33) * mul)
        v = weak(at, held(v1 * mul), held(x + w0))
        w = weak(at + 32, held(z + w1), held(y + fetch(text, at + 16)))
        put(z, y, x, *v, *w)

    y = (81 * K1 + 113) & ((1 << 64) - 1)
    mixed = (y * K2 + 113) & ((1 << 64) - 1)
    start = 81 * K2 & ((1 << 64) - 1)
    zero = word(0)
    put(word(start) + fetch(text, begin), word(y), word((mixed ^ mixed >> 47) * K2 & ((1 << 64) - 1)), *[zero] * 4)
    with T.serial(0, T.shift_right(size - 1, 6)) as number:
        block(held(begin + number * 64), word(K1), 1)
    mul = held(word(K1) + T.shift_left(T.bitwise_and(state[2], word(0xFF)), word(1)))
    T.buffer_store(state, state[5] + u64(T.bitwise_and(size - 1, 63)), [5])
    T.buffer_store(state, state[3] + state[5], [3])
    T.buffer_store(state, state[5] + state[3], [5])
    block(held(begin + size - 64), mul, 9)
    x, y, z, v0, v1, w0, w1 = (held(state[place]) for place in range(7))
    left = held(mix(v0, w0, mul) + shift_mix(y) * word(K0) + z)
    T.buffer_store(out, mix(left, held(mix(v1, w1, mul) + x), mul), [0])


def eight_digits(value: Expr) -> Expr:
    """The digits 0-9 of a number below 10**8, one a byte, the first one lowest: divided in halves within one word."""
    value = held(value)
    high = held(T.floordiv(value, word(10_000)))
    x = held(T.bitwise_or(high, T.shift_left(value - high * word(10_000), word(32))))
    t = held(T.bitwise_and(T.shift_right(x * word(10486), word(20)), word(0x7F_0000_007F)))
    x = held(T.bitwise_or(T.shift_left(x - t * word(100), word(16)), t))
    t = held(T.bitwise_and(T.shift_right(x * word(103), word(10)), word(0x000F_000F_000F_000F)))
    return held(T.bitwise_or(T.shift_left(x - t * word(10), word(8)), t))


def decimal(value: Expr, digits: Any) -> tuple[Expr, Expr]:
    """Writes an int64 as decimal digits to the end of scratch (DIGITS,): where they begin, and how many."""
    value = held(value)
    negative = T.bind(value < T.int64(0))
    size = held(u64(T.Select(negative, T.int64(0) - value, value)))  # right for -2**63 as well, as an unsigned one
    upper = held(T.floordiv(size, word(10**8)))
    top = held(T.floordiv(upper, word(10**8)))
    words = [eight_digits(part) for part in (top, upper - top * word(10**8), size - upper * word(10**8))]
    for place, digit in enumerate(words):
        ascii_digits = T.bitwise_or(digit, word(0x3030_3030_3030_3030))
        T.buffer_store(digits, T.reinterpret("uint8x8", ascii_digits), [lanes(place * 8, 8)])
    first = [_zeros(digit) for digit in words]
    skipped = T.Select(
        words[0] != word(0),
        first[0],
        T.Select(words[1] != word(0), first[1] + 8, T.min(first[2] + 16, T.int32(DIGITS - 1))),
    )
    begin = held(held(skipped) - T.cast(negative, "int32"))
    with when(negative):
        T.buffer_store(digits, T.uint8(ord("-")), [begin])
    return begin, held(DIGITS - begin)


def _zeros(digits: Expr) -> Expr:
    """Leading zeros of a word of digits; 8 for none but zeros."""
    return held(T.cast(T.shift_right(trailing(digits, 64), word(3)), "int32"))


def trailing(value: Expr, bits: int) -> Expr:
    """Zeros below the lowest bit that is set; `bits` where none is."""
    kind = f"uint{bits}"
    return T.call_llvm_pure_intrin(kind, f"llvm.cttz.i{bits}", value, T.bool(False))


@contextmanager
def tokens(text: Any, begin: Expr, end: Expr, separator: Expr, wanted: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Code for each token (its begin, its size) while `wanted` holds, in one pass (AtRec IV-A, fig. 7).

    32 bytes at a time are compared with the separator; the end counts as one. Blocks that would pass the end of all
    texts are read byte by byte.
    """
    at = T.alloc_buffer((2,), "int32", scope="local")  # where the token and the block begin
    found = T.alloc_buffer((1,), "uint32", scope="local")  # separators of the block that are left
    T.buffer_store(at, begin, [0])
    T.buffer_store(at, begin, [1])
    with T.While(T.And(at[1] <= end, wanted)):
        block = held(at[1])
        left = held(end - block)
        with T.If(block + BLOCK <= text.shape[0]):
            with T.Then():
                bytes_ = text[lanes(block, BLOCK)]
                same = T.Select(bytes_ == T.broadcast(separator, BLOCK), _bytes(-1), _bytes(0))
                mask = T.call_llvm_pure_intrin("int32", "llvm.x86.avx2.pmovmskb", same)
                T.buffer_store(found, T.reinterpret("uint32", mask), [0])
            with T.Else():
                T.buffer_store(found, T.uint32(0), [0])
                with T.serial(0, T.min(left, BLOCK)) as i:
                    bit = T.shift_left(T.cast(text[block + i] == separator, "uint32"), T.cast(i, "uint32"))
                    T.buffer_store(found, T.bitwise_or(found[0], bit), [0])
        with when(left < BLOCK):
            last = held(T.shift_left(T.uint32(1), T.cast(left, "uint32")))
            T.buffer_store(found, T.bitwise_or(T.bitwise_and(found[0], last - T.uint32(1)), last), [0])
        with T.While(T.And(found[0] != T.uint32(0), wanted)):
            stop = held(block + T.cast(trailing(found[0], 32), "int32"))
            start = held(at[0])
            T.buffer_store(found, T.bitwise_and(found[0], found[0] - T.uint32(1)), [0])
            T.buffer_store(at, stop + 1, [0])
            yield start, held(stop - start)
        T.buffer_store(at, block + BLOCK, [1])


def _bytes(value: int) -> Expr:
    return T.broadcast(T.int8(value), BLOCK)


def powers_of_ten() -> NDArray[np.float64]:
    """10**-POWERS to 10**POWERS."""
    return np.array([float(f"1e{power}") for power in range(-POWERS, POWERS + 1)])


def number(text: Any, begin: Expr, size: Expr, powers: Any, out: Any, valid: Any) -> None:
    """A decimal number to out[0] (float64) and 1 to valid[0], or 0 for what is none (docs/features.md has the form).

    Seventeen digits count; those and the power of ten are exact to a unit of float64's last place or two.
    """
    at, exponent, seen, power = (T.alloc_buffer((1,), "int32", scope="local") for _ in range(4))
    digits = T.alloc_buffer((1,), "int64", scope="local")
    end = held(begin + size)

    def here() -> Expr:
        """The byte here; the last one where there is none, which no condition takes."""
        return text[T.min(at[0], end - 1)]

    def is_(*letters: str) -> Expr:
        condition = T.bool(False)
        for letter in letters:
            condition = T.Or(condition, here() == T.uint8(ord(letter)))
        return T.And(at[0] < end, condition)

    def step() -> None:
        T.buffer_store(at, at[0] + 1, [0])

    def digit() -> Expr:
        return T.cast(here(), "int32") - ord("0")

    def is_digit() -> Expr:
        return T.And(at[0] < end, T.And(digit() >= 0, digit() <= 9))

    def run(shift: int) -> None:
        """Digits into `digits`, `shift` powers each; those that do not fit leave their power."""
        with T.While(is_digit()):
            with T.If(digits[0] < T.int64(10**16)):
                with T.Then():
                    T.buffer_store(digits, digits[0] * T.int64(10) + T.cast(digit(), "int64"), [0])
                    T.buffer_store(exponent, exponent[0] + shift, [0])
                with T.Else():
                    T.buffer_store(exponent, exponent[0] + shift + 1, [0])
            T.buffer_store(seen, T.int32(1), [0])
            step()

    for buffer in (exponent, seen):
        T.buffer_store(buffer, T.int32(0), [0])
    T.buffer_store(digits, T.int64(0), [0])
    T.buffer_store(at, begin, [0])
    T.buffer_store(valid, T.int32(0), [0])
    with when(size > 0):
        with T.While(is_(" ")):
            step()
        negative = T.bind(is_("-"))
        with when(is_("-", "+")):
            step()
        run(0)
        with when(is_(".")):
            step()
            run(-1)
        with when(T.And(seen[0] == 1, is_("e", "E"))):
            step()
            down = T.bind(is_("-"))
            with when(is_("-", "+")):
                step()
            T.buffer_store(seen, T.int32(0), [0])
            T.buffer_store(power, T.int32(0), [0])
            with T.While(is_digit()):
                T.buffer_store(power, T.min(power[0] * 10 + digit(), T.int32(1 << 20)), [0])
                T.buffer_store(seen, T.int32(1), [0])
                step()
            T.buffer_store(exponent, exponent[0] + T.Select(down, T.int32(0) - power[0], power[0]), [0])
        with T.While(is_(" ")):
            step()
        with when(T.And(seen[0] == 1, at[0] == end)):
            clipped = T.max(T.min(exponent[0], T.int32(POWERS)), T.int32(-POWERS)) + POWERS
            size_of = held(T.cast(digits[0], "float64") * powers[clipped])
            unsigned = held(T.Select(digits[0] == T.int64(0), T.float64(0), size_of))
            T.buffer_store(out, T.Select(negative, T.float64(0) - unsigned, unsigned), [0])
            T.buffer_store(valid, T.int32(1), [0])

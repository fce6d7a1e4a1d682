"""Code over bytes: decimal digits, tokens between separators, numbers.

Nothing outside of [begin, begin + size) is read, whatever the bytes are, and nothing is stored of a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.features.kernel.column_table import CASES
from veltair.compiler.features.kernel.hashing import add, in_register, u64, u64_constant
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import prefetch
from veltair.compiler.kernels.codegen.vectors import Expr, ramp

BLOCK = 32  # bytes compared with the separator at once
USUAL = 4  # separators of a block, at most
NOTED = 128  # tokens that are found before the first of them is looked at
FETCHED = 1024  # bytes ahead
DIGITS = 24  # bytes of scratch for a decimal number: three words of eight digits
POWERS = 340  # of ten, each way


def eight_digits(value: Expr) -> Expr:
    """The digits 0-9 of a number below 10**8, one a byte, the first one lowest: divided in halves within one word."""
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


def decimal(value: Expr, digits: Any) -> tuple[Expr, Expr]:
    """Writes an int64 as decimal digits to the end of scratch (DIGITS,): where they begin, and how many."""
    value = in_register(value)
    negative = T.bind(value < T.int64(0))
    size = in_register(T.Select(negative, add(T.bitwise_not(u64(value)), u64_constant(1)), u64(value)))
    upper = in_register(T.floordiv(size, u64_constant(10**8)))
    top = in_register(T.floordiv(upper, u64_constant(10**8)))
    words = [
        eight_digits(part) for part in (top, upper - top * u64_constant(10**8), size - upper * u64_constant(10**8))
    ]
    for place, digit in enumerate(words):
        ascii_digits = T.bitwise_or(digit, u64_constant(0x3030_3030_3030_3030))
        T.buffer_store(digits, T.reinterpret("uint8x8", ascii_digits), [ramp(place * 8, 8)])
    first = [_zeros(digit) for digit in words]
    skipped = T.Select(
        words[0] != u64_constant(0),
        first[0],
        T.Select(words[1] != u64_constant(0), first[1] + 8, T.min(first[2] + 16, T.int32(DIGITS - 1))),
    )
    begin = in_register(in_register(skipped) - T.cast(negative, "int32"))
    with when(negative):
        T.buffer_store(digits, T.uint8(ord("-")), [begin])
    return begin, in_register(DIGITS - begin)


def _zeros(digits: Expr) -> Expr:
    """Leading zeros of a word of digits; 8 for none but zeros."""
    return in_register(T.cast(T.shift_right(trailing(digits, 64), u64_constant(3)), "int32"))


def trailing(value: Expr, bits: int) -> Expr:
    """Zeros below the lowest bit that is set; `bits` where none is."""
    kind = f"uint{bits}"
    return T.call_llvm_pure_intrin(kind, f"llvm.cttz.i{bits}", value, T.bool(False))


@contextmanager
def tokens(text: Any, begin: Expr, end: Expr, separator: Expr, left: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Code for each token (its begin, its size) in one pass (AtRec IV-A, fig. 7), while `left` of them are wanted.

    The ends of NOTED tokens are noted at once, but no more than are wanted: a branch for each would be guessed wrongly
    about as often as tokens differ in length.
    """
    at = T.alloc_buffer((2,), "int32", scope="global")  # where the token and the block begin
    ends = T.alloc_buffer((NOTED + BLOCK,), "int32", scope="global")
    noted, done = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(2))
    T.buffer_store(at, begin, [0])
    T.buffer_store(at, begin, [1])
    with T.While(T.And(at[0] <= end, left > 0)):
        T.buffer_store(noted, T.int32(0), [0])
        T.buffer_store(done, T.int32(0), [0])
        enough = in_register(T.min(left, T.int32(NOTED)))
        with T.While(T.And(at[1] <= end, noted[0] < enough)):
            _note(text, in_register(at[1]), end, separator, ends, noted)
            T.buffer_store(at, at[1] + BLOCK, [1])
        with T.While(T.And(done[0] < noted[0], left > 0)):
            start, stop = in_register(at[0]), in_register(ends[done[0]])
            T.buffer_store(done, done[0] + 1, [0])
            T.buffer_store(at, stop + 1, [0])
            yield start, in_register(stop - start)


def _note(text: Any, block: Expr, end: Expr, separator: Expr, ends: Any, noted: Any) -> None:
    """Where tokens end in the 32 bytes from `block` on, of which those behind `end` do not count; it is an end itself.

    A block that would pass the end of all texts is read byte by byte.
    """
    found = T.alloc_buffer((1,), "uint32", scope="global")
    left, first = in_register(end - block), in_register(noted[0])
    prefetch(text[block + FETCHED], level=1)  # texts of a feature follow each other
    with T.If(block + BLOCK <= text.shape[0]):
        with T.Then():
            bytes_ = text[ramp(block, BLOCK)]
            same = T.Select(bytes_ == T.broadcast(separator, BLOCK), _bytes(-1), _bytes(0))
            mask = T.call_llvm_pure_intrin("int32", "llvm.x86.avx2.pmovmskb", same)
            T.buffer_store(found, T.reinterpret("uint32", mask), [0])
        with T.Else():
            T.buffer_store(found, T.uint32(0), [0])
            with T.serial(0, T.min(left, BLOCK)) as i:
                bit = T.shift_left(T.cast(text[block + i] == separator, "uint32"), T.cast(i, "uint32"))
                T.buffer_store(found, T.bitwise_or(found[0], bit), [0])
    with when(left < BLOCK):
        last = in_register(T.shift_left(T.uint32(1), T.cast(left, "uint32")))
        T.buffer_store(found, T.bitwise_or(T.bitwise_and(found[0], last - T.uint32(1)), last), [0])
    count = in_register(T.cast(T.popcount(found[0]), "int32"))

    def note(place: Expr | int) -> None:
        T.buffer_store(ends, block + T.cast(trailing(found[0], 32), "int32"), [first + place])
        T.buffer_store(found, T.bitwise_and(found[0], found[0] - T.uint32(1)), [0])

    for place in range(USUAL):  # whether there are so many or not
        note(place)
    with when(count > USUAL), T.serial(USUAL, count) as place:
        note(place)
    T.buffer_store(noted, first + count, [0])


def _bytes(value: int) -> Expr:
    return T.broadcast(T.int8(value), BLOCK)


_LOWER, _UPPER = ([CASES.index(case) for case in (name, f"{name} unicode")] for name in ("lower", "upper"))
# Letters of Unicode that become ASCII ones: in which case, the letter, what it becomes.
ASCII_TWINS = (
    (_LOWER[1], "\u212a", "k"), (_LOWER[1], "\u0130", "i"), (_UPPER[1], "\u0131", "I"), (_UPPER[1], "\u017f", "S"),
)  # fmt: skip


def append(text: Any, begin: Expr, size: Expr, case: Expr, out: Any, used: Any) -> None:
    """Puts text behind the used[0] bytes of `out`, in another case; used[0] ends beyond `out` where it has no room."""
    room = int(out.shape[0])
    at = T.alloc_buffer((1,), "int32", scope="global")
    T.buffer_store(at, T.int32(0), [0])
    with T.While(T.And(at[0] < size, used[0] <= room)):

        def here(ahead: int = 0) -> Expr:
            return T.cast(text[begin + T.min(at[0] + ahead, size - 1)], "int32")

        letter, steps = here(), T.int32(1)
        lower = T.And(letter >= ord("A"), letter <= ord("Z"))
        upper = T.And(letter >= ord("a"), letter <= ord("z"))
        shift = T.Select(T.And(_among(case, _LOWER), lower), T.int32(32), T.int32(0))
        letter = letter + T.Select(T.And(_among(case, _UPPER), upper), T.int32(-32), shift)
        for wanted, sign, twin in ASCII_TWINS:
            bytes_ = sign.encode()
            same = T.And(case == wanted, at[0] + len(bytes_) <= size)
            for ahead, byte in enumerate(bytes_):
                same = T.And(same, here(ahead) == byte)
            same = T.bind(same)
            letter, steps = T.Select(same, T.int32(ord(twin)), letter), T.Select(same, T.int32(len(bytes_)), steps)
        letter, steps = in_register(letter), in_register(steps)
        with when(used[0] < room):
            T.buffer_store(out, T.cast(letter, "uint8"), [used[0]])
        T.buffer_store(used, used[0] + 1, [0])
        T.buffer_store(at, at[0] + steps, [0])


def _among(value: Expr, numbers: Sequence[int]) -> Expr:
    one, other = numbers
    return T.Or(value == one, value == other)


def powers_of_ten() -> NDArray[np.float64]:
    """10**-POWERS to 10**POWERS."""
    return np.array([float(f"1e{power}") for power in range(-POWERS, POWERS + 1)])


def number(text: Any, begin: Expr, size: Expr, powers: Any, out: Any, valid: Any) -> None:
    """A decimal number to out[0] (float64) and 1 to valid[0], or 0 for what is none (docs/features.md has the form).

    Seventeen digits count; those and the power of ten are exact to a unit of float64's last place or two.
    """
    at, exponent, seen, power = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(4))
    digits = T.alloc_buffer((1,), "int64", scope="global")
    end = in_register(begin + size)

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
            size_of = in_register(T.cast(digits[0], "float64") * powers[clipped])
            unsigned = in_register(T.Select(digits[0] == T.int64(0), T.float64(0), size_of))
            T.buffer_store(out, T.Select(negative, T.float64(0) - unsigned, unsigned), [0])
            T.buffer_store(valid, T.int32(1), [0])

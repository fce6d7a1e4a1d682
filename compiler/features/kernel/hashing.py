"""Fingerprint64 as code, and arithmetic modulo 2**64 for it (columns/fingerprint.py has it in Python).

Nothing outside of [begin, begin + size) is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.features.fingerprint import K0, K1, K2, WORD
from veltair.compiler.kernels.codegen.vectors import Expr, ramp


def u64_constant(value: int) -> Expr:
    """A 64-bit constant; TVM refuses literals of 2**63 and above."""
    return T.uint64(value) if value < 1 << 63 else T.reinterpret("uint64", T.int64(value - (1 << 64)))


def u64(value: Expr) -> Expr:
    return T.cast(value, "uint64")


def add(first: Expr, *others: Expr) -> Expr:
    """Modulo 2**64. TVM tells LLVM that no sum or product overflows, so those that may are made in 128 bits."""
    total = T.cast(first, "uint128")
    for other in others:
        total = T.cast(T.cast(total + T.cast(other, "uint128"), "uint64"), "uint128")
    return T.cast(total, "uint64")


def mul(a: Expr, b: Expr) -> Expr:
    """Modulo 2**64."""
    return T.cast(T.cast(a, "uint128") * T.cast(b, "uint128"), "uint64")


def remainder(value: Expr, divisor: Expr, reciprocal: Expr) -> Expr:
    """`value` modulo a divisor whose reciprocal floor((2**64 - 1) / divisor) is known; it finds the quotient
    or one less."""
    value = in_register(value)
    high = T.shift_right(T.cast(value, "uint128") * T.cast(reciprocal, "uint128"), T.cast(u64_constant(64), "uint128"))
    rest = in_register(value - mul(T.cast(high, "uint64"), divisor))
    return T.Select(rest >= divisor, add(rest, mul(divisor, u64_constant(WORD))), rest)


def in_register(value: Expr) -> Expr:
    """A value in a variable of its own, which LLVM makes a register.

    TVM looks through bindings, and through chains of them exponentially. Local scope would be memory of the heap.
    """
    kind = str(value.ty.dtype if hasattr(value, "ty") and hasattr(value.ty, "dtype") else value.dtype)
    element, _, count = kind.partition("x")
    variable = T.alloc_buffer((int(count or 1),), element, scope="global")
    at = ramp(0, int(count)) if count else 0
    T.buffer_store(variable, value, [at])
    return variable[at]


def rotate(value: Expr, by: int) -> Expr:
    value = in_register(value)
    return T.bitwise_or(T.shift_right(value, u64_constant(by)), T.shift_left(value, u64_constant(64 - by)))


def shift_mix(value: Expr) -> Expr:
    value = in_register(value)
    return in_register(T.bitwise_xor(value, T.shift_right(value, u64_constant(47))))


def mix(u: Expr, v: Expr, factor: Expr) -> Expr:
    v = in_register(v)
    first = shift_mix(mul(T.bitwise_xor(u, v), factor))
    return mul(shift_mix(mul(T.bitwise_xor(v, first), factor)), factor)


def fetch(text: Any, at: Expr) -> Expr:
    return in_register(T.reinterpret("uint64", text[ramp(at, 8)]))


def fetch32(text: Any, at: Expr) -> Expr:
    return in_register(u64(T.reinterpret("uint32", text[ramp(at, 4)])))


def fingerprint(text: Any, begin: Expr, size: Expr, out: Any, longest: int | None = None) -> None:
    """Fingerprint64 of `size` bytes to out[0]. `longest` leaves out the classes that cannot occur."""
    wide = in_register(u64(size))
    factor = in_register(add(u64_constant(K2), wide * u64_constant(2)))
    end = in_register(begin + size)

    def give(value: Expr) -> None:
        T.buffer_store(out, value, [0])

    def up_to_3() -> None:
        first, middle, last = (u64(text[at]) for at in (begin, begin + T.shift_right(size, 1), end - 1))
        y = first + T.shift_left(middle, u64_constant(8))
        z = wide + T.shift_left(last, u64_constant(2))
        give(mul(shift_mix(T.bitwise_xor(mul(y, u64_constant(K2)), mul(z, u64_constant(K0)))), u64_constant(K2)))

    def up_to_7() -> None:
        give(mix(wide + T.shift_left(fetch32(text, begin), u64_constant(3)), fetch32(text, end - 4), factor))

    def up_to_16() -> None:
        a, b = in_register(add(fetch(text, begin), u64_constant(K2))), fetch(text, end - 8)
        give(mix(add(mul(rotate(b, 37), factor), a), mul(add(rotate(a, 25), b), factor), factor))

    def up_to_32() -> None:
        give(_middle(text, begin, end, factor, K1)[2])

    def up_to_64() -> None:
        a, y, z = _middle(text, begin, end, factor, K2)
        e, f = in_register(mul(fetch(text, begin + 16), factor)), fetch(text, begin + 24)
        g = in_register(mul(add(y, fetch(text, end - 32)), factor))
        h = in_register(mul(add(z, fetch(text, end - 24)), factor))
        give(mix(add(rotate(add(e, f), 43), rotate(g, 30), h), add(e, rotate(add(f, a), 18), g), factor))

    classes: list[tuple[int, Callable[[], None]]] = [
        (0, lambda: give(u64_constant(K2))),
        (3, up_to_3),
        (7, up_to_7),
        (16, up_to_16),
        (32, up_to_32),
    ]
    if longest is None or longest > 32:
        classes += [(64, up_to_64), (0, lambda: _long(text, begin, size, out))]

    def choose(low: int, high: int) -> None:
        """By halves, the middle lengths in two steps."""
        if high - low == 1:
            classes[low][1]()
            return
        half = (low + high) // 2
        with T.If(size <= classes[half - 1][0]):
            with T.Then():
                choose(low, half)
            with T.Else():
                choose(half, high)

    choose(0, len(classes))


def _middle(text: Any, begin: Expr, end: Expr, factor: Expr, first: int) -> tuple[Expr, Expr, Expr]:
    """What lengths of 17 to 32 and of 33 to 64 have in common: (a, y, z), z being the hash of the former."""
    a, b = in_register(mul(fetch(text, begin), u64_constant(first))), fetch(text, begin + 8)
    c, d = in_register(mul(fetch(text, end - 8), factor)), in_register(mul(fetch(text, end - 16), u64_constant(K2)))
    y = in_register(add(rotate(add(a, b), 43), rotate(c, 30), d))
    return a, y, in_register(mix(y, add(a, rotate(add(b, u64_constant(K2)), 18), c), factor))


def _long(text: Any, begin: Expr, size: Expr, out: Any) -> None:
    """More than 64 bytes: a state of seven words, 64 bytes at a time, the last 64 over again."""
    state = T.alloc_buffer((7,), "uint64", scope="global")  # x, y, z, v, w

    def put(*values: Expr) -> None:
        for place, value in enumerate(values):
            T.buffer_store(state, value, [place])

    def weak(at: Expr, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        w, x, y, z = (fetch(text, at + step) for step in (0, 8, 16, 24))
        first = in_register(add(a, w))
        turned = rotate(add(b, first, z), 21)
        third = in_register(add(first, x, y))
        return in_register(add(third, z)), in_register(add(rotate(third, 44), turned, first))

    def block(at: Expr, factor: Expr, times: int) -> None:
        x, y, z, v0, v1, w0, w1 = (in_register(state[place]) for place in range(7))
        x = in_register(mul(rotate(add(x, y, v0, fetch(text, at + 8)), 37), factor))
        y = in_register(mul(rotate(add(y, v1, fetch(text, at + 48)), 42), factor))
        x = in_register(T.bitwise_xor(x, mul(w1, u64_constant(times))))
        y = in_register(add(y, mul(v0, u64_constant(times)), fetch(text, at + 40)))
        z = in_register(mul(rotate(add(z, w0), 33), factor))
        v = weak(at, in_register(mul(v1, factor)), in_register(add(x, w0)))
        w = weak(at + 32, in_register(add(z, w1)), in_register(add(y, fetch(text, at + 16))))
        put(z, y, x, *v, *w)

    y = (81 * K1 + 113) & WORD
    mixed = (y * K2 + 113) & WORD
    start = add(u64_constant(81 * K2 & WORD), fetch(text, begin))
    put(start, u64_constant(y), u64_constant((mixed ^ mixed >> 47) * K2 & WORD), *[u64_constant(0)] * 4)
    with T.serial(0, T.shift_right(size - 1, 6)) as number:
        block(in_register(begin + number * 64), u64_constant(K1), 1)
    factor = in_register(
        add(u64_constant(K1), T.shift_left(T.bitwise_and(state[2], u64_constant(0xFF)), u64_constant(1)))
    )
    T.buffer_store(state, add(state[5], u64(T.bitwise_and(size - 1, 63))), [5])
    T.buffer_store(state, add(state[3], state[5]), [3])
    T.buffer_store(state, add(state[5], state[3]), [5])
    block(in_register(begin + size - 64), factor, 9)
    x, y, z, v0, v1, w0, w1 = (in_register(state[place]) for place in range(7))
    left = in_register(add(mix(v0, w0, factor), mul(shift_mix(y), u64_constant(K0)), z))
    T.buffer_store(out, mix(left, in_register(add(mix(v1, w1, factor), x)), factor), [0])

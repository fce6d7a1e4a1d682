"""FarmHash's Fingerprint64 as generated code; `features/fingerprint.py` is the same function in Python.

The names a to h, v to z and the formulas are FarmHash's (farmhashna::Hash64): there is one formula for each class of
lengths, up to 3, 7, 16, 32 and 64 bytes, and above. Each is straight-line code over 64-bit words of the text. Words
overlap where the length is no multiple of 8, so that nothing outside of [begin, begin + size) is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr, ramp
from veltair.compiler.features.fingerprint import CROSS_FACTOR, K0, K1, K2, WORD
from veltair.compiler.features.text_code.word_arithmetic import add, in_register, mul, rotate, u64, u64_constant

STATE = 7  # words of the state for long texts: x, y, z, v[2], w[2]


def emit_fingerprint(text: Any, begin: Expr, size: Expr, out: Any, longest: int | None = None) -> None:
    """Stores the fingerprint of `size` bytes of the buffer `text` from `begin` on in out[0] (uint64).

    `longest`, a bound of `size`, leaves out the classes of lengths that cannot occur.
    """
    wide = in_register(u64(size))
    factor = in_register(add(u64_constant(K2), wide * u64_constant(2)))
    end = in_register(begin + size)

    def give(value: Expr) -> None:
        T.buffer_store(out, value, [0])

    def up_to_3() -> None:
        first, middle, last = (u64(text[at]) for at in (begin, begin + T.shift_right(size, 1), end - 1))
        y = first + T.shift_left(middle, u64_constant(8))
        z = wide + T.shift_left(last, u64_constant(2))
        give(mul(_shift_mix(T.bitwise_xor(mul(y, u64_constant(K2)), mul(z, u64_constant(K0)))), u64_constant(K2)))

    def up_to_7() -> None:
        give(_mix(wide + T.shift_left(_read_u32(text, begin), u64_constant(3)), _read_u32(text, end - 4), factor))

    def up_to_16() -> None:
        a, b = in_register(add(_read_word(text, begin), u64_constant(K2))), _read_word(text, end - 8)
        give(_mix(add(mul(rotate(b, 37), factor), a), mul(add(rotate(a, 25), b), factor), factor))

    def up_to_32() -> None:
        give(_middle(text, begin, end, factor, K1)[2])

    def up_to_64() -> None:
        a, y, z = _middle(text, begin, end, factor, K2)
        e, f = in_register(mul(_read_word(text, begin + 16), factor)), _read_word(text, begin + 24)
        g = in_register(mul(add(y, _read_word(text, end - 32)), factor))
        h = in_register(mul(add(z, _read_word(text, end - 24)), factor))
        give(_mix(add(rotate(add(e, f), 43), rotate(g, 30), h), add(e, rotate(add(f, a), 18), g), factor))

    classes: list[tuple[int, Callable[[], None]]] = [
        (0, lambda: give(u64_constant(K2))),
        (3, up_to_3),
        (7, up_to_7),
        (16, up_to_16),
        (32, up_to_32),
    ]  # the longest text of each class, and its code
    if longest is None or longest > 32:
        classes += [(64, up_to_64), (0, lambda: _emit_long(text, begin, size, out))]

    def choose(low: int, high: int) -> None:
        """Branches on the length by halves: the lengths in the middle take two steps."""
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


def joined_fingerprint(fingerprint: Expr, other: Expr) -> Expr:
    """TensorFlow's FingerprintCat64 of two fingerprints."""
    factor = u64_constant(CROSS_FACTOR)
    mixed = mul(_shift_mix(mul(other, factor)), factor)
    found = T.bitwise_xor(T.bitwise_xor(fingerprint, factor), mixed)
    return _shift_mix(mul(_shift_mix(mul(in_register(found), factor)), factor))


def _middle(text: Any, begin: Expr, end: Expr, factor: Expr, first: int) -> tuple[Expr, Expr, Expr]:
    """The part that lengths of 17 to 32 and of 33 to 64 share: (a, y, z), where z is the fingerprint of the former."""
    a, b = in_register(mul(_read_word(text, begin), u64_constant(first))), _read_word(text, begin + 8)
    c, d = (
        in_register(mul(_read_word(text, end - 8), factor)),
        in_register(mul(_read_word(text, end - 16), u64_constant(K2))),
    )
    y = in_register(add(rotate(add(a, b), 43), rotate(c, 30), d))
    return a, y, in_register(_mix(y, add(a, rotate(add(b, u64_constant(K2)), 18), c), factor))


def _emit_long(text: Any, begin: Expr, size: Expr, out: Any) -> None:
    """More than 64 bytes: a state of seven words takes 64 bytes at a time, and at the end the last 64 once more."""
    state = T.alloc_buffer((STATE,), "uint64", scope="global")

    def put(*values: Expr) -> None:
        for place, value in enumerate(values):
            T.buffer_store(state, value, [place])

    def weak(at: Expr, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """FarmHash's WeakHashLen32WithSeeds: 32 bytes and two seeds to two words."""
        w, x, y, z = (_read_word(text, at + step) for step in (0, 8, 16, 24))
        first = in_register(add(a, w))
        turned = rotate(add(b, first, z), 21)
        third = in_register(add(first, x, y))
        return in_register(add(third, z)), in_register(add(rotate(third, 44), turned, first))

    def block(at: Expr, factor: Expr, times: int) -> None:
        """64 bytes into the state; `times` is 9 for the last block and 1 for the others."""
        x, y, z, v0, v1, w0, w1 = (in_register(state[place]) for place in range(STATE))
        x = in_register(mul(rotate(add(x, y, v0, _read_word(text, at + 8)), 37), factor))
        y = in_register(mul(rotate(add(y, v1, _read_word(text, at + 48)), 42), factor))
        x = in_register(T.bitwise_xor(x, mul(w1, u64_constant(times))))
        y = in_register(add(y, mul(v0, u64_constant(times)), _read_word(text, at + 40)))
        z = in_register(mul(rotate(add(z, w0), 33), factor))
        v = weak(at, in_register(mul(v1, factor)), in_register(add(x, w0)))
        w = weak(at + 32, in_register(add(z, w1)), in_register(add(y, _read_word(text, at + 16))))
        put(z, y, x, *v, *w)

    y = (81 * K1 + 113) & WORD
    mixed = (y * K2 + 113) & WORD
    start = add(u64_constant(81 * K2 & WORD), _read_word(text, begin))
    put(start, u64_constant(y), u64_constant((mixed ^ mixed >> 47) * K2 & WORD), *[u64_constant(0)] * 4)
    with T.serial(0, T.shift_right(size - 1, 6)) as number:
        block(in_register(begin + number * 64), u64_constant(K1), 1)
    low_byte = T.bitwise_and(state[2], u64_constant(0xFF))
    factor = in_register(add(u64_constant(K1), T.shift_left(low_byte, u64_constant(1))))
    T.buffer_store(state, add(state[5], u64(T.bitwise_and(size - 1, 63))), [5])
    T.buffer_store(state, add(state[3], state[5]), [3])
    T.buffer_store(state, add(state[5], state[3]), [5])
    block(in_register(begin + size - 64), factor, 9)
    x, y, z, v0, v1, w0, w1 = (in_register(state[place]) for place in range(STATE))
    left = in_register(add(_mix(v0, w0, factor), mul(_shift_mix(y), u64_constant(K0)), z))
    T.buffer_store(out, _mix(left, in_register(add(_mix(v1, w1, factor), x)), factor), [0])


def _shift_mix(value: Expr) -> Expr:
    value = in_register(value)
    return in_register(T.bitwise_xor(value, T.shift_right(value, u64_constant(47))))


def _mix(u: Expr, v: Expr, factor: Expr) -> Expr:
    """FarmHash's HashLen16: two words to one."""
    v = in_register(v)
    first = _shift_mix(mul(T.bitwise_xor(u, v), factor))
    return mul(_shift_mix(mul(T.bitwise_xor(v, first), factor)), factor)


def _read_word(text: Any, at: Expr) -> Expr:
    """Eight bytes as a word, the first one lowest."""
    return in_register(T.reinterpret("uint64", text[ramp(at, 8)]))


def _read_u32(text: Any, at: Expr) -> Expr:
    """Four bytes as a word, the first one lowest."""
    return in_register(u64(T.reinterpret("uint32", text[ramp(at, 4)])))

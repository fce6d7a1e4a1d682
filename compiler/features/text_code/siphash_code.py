"""SipHash-2-4 as generated code; `features/siphash.py` is the same function in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr, ramp
from veltair.compiler.features.siphash import START
from veltair.compiler.features.text_code.word_arithmetic import add, in_register, rotate, u64, u64_constant


def emit_siphash(text: Any, begin: Expr, size: Expr, key: tuple[Expr, Expr], out: Any) -> None:
    """Stores the hash of `size` bytes of the buffer `text` from `begin` on in out[0] (uint64). Reads no other byte."""
    # A variable for each word of the state: LLVM keeps an array of four in a vector, which the loop over the text packs
    # and unpacks at each word (104 µs instead of 62).
    v = [T.alloc_buffer((1,), "uint64", scope="global") for _ in START]
    word = T.alloc_buffer((1,), "uint64", scope="global")

    def take() -> None:
        _store(v[3], T.bitwise_xor(v[3][0], word[0]))
        _emit_rounds(v, 2)
        _store(v[0], T.bitwise_xor(v[0][0], word[0]))

    for place, start in enumerate(START):
        _store(v[place], T.bitwise_xor(u64_constant(start), key[place % 2]))
    words = in_register(T.shift_right(size, 3))
    with T.serial(0, words) as number:
        _store(word, T.reinterpret("uint64", text[ramp(begin + number * 8, 8)]))
        take()
    left = in_register(T.bitwise_and(size, 7))
    _store(word, T.shift_left(u64(T.bitwise_and(size, 0xFF)), u64_constant(56)))
    with T.serial(0, left) as place:
        byte = u64(text[begin + words * 8 + place])
        _store(word, T.bitwise_or(word[0], T.shift_left(byte, u64(place * 8))))
    take()
    _store(v[2], T.bitwise_xor(v[2][0], u64_constant(0xFF)))
    _emit_rounds(v, 4)
    _store(out, T.bitwise_xor(T.bitwise_xor(v[0][0], v[1][0]), T.bitwise_xor(v[2][0], v[3][0])))


def _emit_rounds(v: Sequence[Any], times: int) -> None:
    def mix(one: int, other: int, by: int) -> None:
        _store(v[one], add(v[one][0], v[other][0]))
        _store(v[other], T.bitwise_xor(rotate(v[other][0], 64 - by), v[one][0]))

    with T.serial(0, times):
        mix(0, 1, 13)
        mix(2, 3, 16)
        _store(v[0], rotate(v[0][0], 32))
        mix(2, 1, 17)
        mix(0, 3, 21)
        _store(v[2], rotate(v[2][0], 32))


def _store(variable: Any, value: Expr) -> None:
    T.buffer_store(variable, value, [0])

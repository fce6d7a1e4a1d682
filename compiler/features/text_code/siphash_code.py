"""SipHash-2-4 as generated code; `features/siphash.py` is the same function in Python."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr, ramp
from veltair.compiler.features.siphash import START
from veltair.compiler.features.text_code.word_arithmetic import add, in_register, rotate, u64, u64_constant


def emit_siphash(text: Any, begin: Expr, size: Expr, key: tuple[Expr, Expr], out: Any) -> None:
    """Stores the hash of `size` bytes of the buffer `text` from `begin` on in out[0] (uint64). Reads no other byte."""
    v = T.alloc_buffer((4,), "uint64", scope="global")
    word = T.alloc_buffer((1,), "uint64", scope="global")

    def take() -> None:
        T.buffer_store(v, T.bitwise_xor(v[3], word[0]), [3])
        _emit_rounds(v, 2)
        T.buffer_store(v, T.bitwise_xor(v[0], word[0]), [0])

    for place, start in enumerate(START):
        T.buffer_store(v, T.bitwise_xor(u64_constant(start), key[place % 2]), [place])
    words = in_register(T.shift_right(size, 3))
    with T.serial(0, words) as number:
        T.buffer_store(word, T.reinterpret("uint64", text[ramp(begin + number * 8, 8)]), [0])
        take()
    left = in_register(T.bitwise_and(size, 7))
    T.buffer_store(word, T.shift_left(u64(T.bitwise_and(size, 0xFF)), u64_constant(56)), [0])
    with T.serial(0, left) as place:
        byte = u64(text[begin + words * 8 + place])
        T.buffer_store(word, T.bitwise_or(word[0], T.shift_left(byte, u64(place * 8))), [0])
    take()
    T.buffer_store(v, T.bitwise_xor(v[2], u64_constant(0xFF)), [2])
    _emit_rounds(v, 4)
    T.buffer_store(out, T.bitwise_xor(T.bitwise_xor(v[0], v[1]), T.bitwise_xor(v[2], v[3])), [0])


def _emit_rounds(v: Any, times: int) -> None:
    def mix(one: int, other: int, by: int) -> None:
        T.buffer_store(v, add(v[one], v[other]), [one])
        T.buffer_store(v, T.bitwise_xor(rotate(v[other], 64 - by), v[one]), [other])

    with T.serial(0, times):
        mix(0, 1, 13)
        mix(2, 3, 16)
        T.buffer_store(v, rotate(v[0], 32), [0])
        mix(2, 1, 17)
        mix(0, 3, 21)
        T.buffer_store(v, rotate(v[2], 32), [2])

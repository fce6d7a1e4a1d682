"""Tables of 256 bytes, and 64 bytes looked up at once."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr, ramp

BYTES, WORDS = 64, 32  # of a vector
_PERMUTE = "llvm.x86.avx512.vpermi2var.hi.512"  # a word of two vectors for each lane


def load_byte_table(table: Any) -> list[Expr]:
    """A buffer (256) of 8 bits in four registers."""
    return [T.bind(T.reinterpret(f"int16x{WORDS}", table[ramp(i * BYTES, BYTES)])) for i in range(4)]


def look_up_bytes(table: list[Expr], index: Expr, dtype: str) -> Expr:
    """What `load_byte_table` gives, at each of 64 indices of 8 bits. Needs AVX-512."""
    pairs = T.bind(T.reinterpret(f"uint16x{WORDS}", index))
    low = _look_up_words(table, T.bind(T.bitwise_and(pairs, _words(255))))
    high = _look_up_words(table, T.bind(T.shift_right(pairs, _words(8))))
    return T.reinterpret(f"{dtype}x{BYTES}", T.bitwise_or(low, T.shift_left(high, _words(8))))


def _look_up_words(table: list[Expr], index: Expr) -> Expr:
    """The bytes at indices below 256, as words: of the pair that a byte belongs to, the one that is meant."""
    place = T.bind(T.reinterpret(f"int16x{WORDS}", T.shift_right(index, _words(1))))
    halves = [T.call_llvm_pure_intrin(f"int16x{WORDS}", _PERMUTE, table[i], place, table[i + 1]) for i in (0, 2)]
    pair = T.Select(index < _words(128), *(T.reinterpret(f"uint16x{WORDS}", half) for half in halves))
    shift = T.shift_left(T.bitwise_and(index, _words(1)), _words(3))
    return T.bind(T.bitwise_and(T.shift_right(T.bind(pair), shift), _words(255)))


def _words(value: int) -> Expr:
    return T.Broadcast(T.uint16(value), WORDS)

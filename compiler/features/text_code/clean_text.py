"""Texts as a column reads them: in another letter case, without white space around, as generated code."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.features.text_code.word_arithmetic import in_register, u64_constant

SHIFT = {"lower": (b"A", b"Z", 32), "upper": (b"a", b"z", -32)}  # first and last letter, and what becomes of them


class CasedText:
    """A buffer of bytes whose ASCII letters are read in another case, one by one or as vectors.

    ::

        emit_fingerprint(CasedText(bytes_, "lower"), begin, size, out)
    """

    def __init__(self, text: Any, case: str) -> None:
        self._text = text
        (first,), (last,), self._shift = SHIFT[case]
        self._first, self._last = first, last

    def __getitem__(self, place: Any) -> Expr:
        value = in_register(self._text[place])

        def every(number: int) -> Expr:
            return T.broadcast(T.uint8(number), place.lanes) if isinstance(place, tirx.Ramp) else T.uint8(number)

        changes = T.And(value >= every(self._first), value <= every(self._last))
        moved = value + every(self._shift) if self._shift > 0 else value - every(-self._shift)
        return in_register(T.Select(changes, moved, value))


def emit_stripped(text: Any, begin: Expr, size: Expr) -> tuple[Expr, Expr]:
    """Begin and size of a text without the ASCII white space around it."""
    span = T.alloc_buffer((2,), "int32", scope="global")  # where it begins and ends
    T.buffer_store(span, begin, [0])
    T.buffer_store(span, in_register(begin + size), [1])
    with T.While(T.And(span[0] < span[1], _is_white(text, T.min(span[0], begin + size - 1)))):
        T.buffer_store(span, span[0] + 1, [0])
    with T.While(T.And(span[0] < span[1], _is_white(text, span[1] - 1))):
        T.buffer_store(span, span[1] - 1, [1])
    return in_register(span[0]), in_register(span[1] - span[0])


def copy_without(text: Any, begin: Expr, size: Expr, left_out: bytes, out: Any, used: Any) -> None:
    """Puts the bytes of a text that are not left out into `out`, and their number into used[0].

    used[0] ends beyond the length of `out` where `out` has no room.
    """
    room, at = int(out.shape[0]), T.alloc_buffer((1,), "int32", scope="global")
    T.buffer_store(used, T.int32(0), [0])
    T.buffer_store(at, T.int32(0), [0])
    with T.While(T.And(at[0] < size, used[0] <= room)):
        byte = in_register(T.cast(text[begin + at[0]], "uint8"))
        with when(used[0] < room):
            T.buffer_store(out, byte, [used[0]])
        T.buffer_store(used, used[0] + T.cast(T.Not(is_one_of(byte, left_out)), "int32"), [0])
        T.buffer_store(at, at[0] + 1, [0])


def emit_has_rest(text: Any, begin: Expr, size: Expr, left_out: bytes) -> Expr:
    """Whether a text has a byte that is not left out."""
    at = T.alloc_buffer((2,), "int32", scope="global")  # the byte, and whether it was one
    T.buffer_store(at, T.int32(0), [0])
    T.buffer_store(at, T.int32(0), [1])
    with T.While(T.And(at[0] < size, at[1] == 0)):
        byte = in_register(T.cast(text[begin + at[0]], "uint8"))
        T.buffer_store(at, T.cast(T.Not(is_one_of(byte, left_out)), "int32"), [1])
        T.buffer_store(at, at[0] + 1, [0])
    return at[1] == 1


def is_one_of(byte: Expr, members: bytes) -> Expr:
    """Whether a byte is a member of a set: a bit of one of four words."""
    words = [sum(1 << (member - 64 * word) for member in members if member // 64 == word) for word in range(4)]
    chosen = u64_constant(words[3])
    for word in (2, 1, 0):
        chosen = T.Select(byte < T.uint8(64 * (word + 1)), u64_constant(words[word]), chosen)
    place = T.cast(T.bitwise_and(byte, T.uint8(63)), "uint64")
    return T.bitwise_and(T.shift_right(chosen, place), u64_constant(1)) == u64_constant(1)


def _is_white(text: Any, place: Expr) -> Expr:
    """Whether a byte is white space. Of an empty text it is the one before: conditions read both of their sides."""
    byte = T.cast(text[T.max(place, 0)], "int32")
    return T.Or(byte == 32, T.And(byte >= 9, byte <= 13))

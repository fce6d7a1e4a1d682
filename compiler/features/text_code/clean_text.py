"""Texts as a column reads them: in another letter case, without white space around, as generated code."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.features.text_code.word_arithmetic import in_register

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


def _is_white(text: Any, place: Expr) -> Expr:
    """Whether a byte is white space. Of an empty text it is the one before: conditions read both of their sides."""
    byte = T.cast(text[T.max(place, 0)], "int32")
    return T.Or(byte == 32, T.And(byte >= 9, byte <= 13))

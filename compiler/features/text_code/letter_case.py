"""Texts put behind each other in another letter case, as generated code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.features.text_code.word_arithmetic import in_register

CASES = (None, "lower", "upper", "lower unicode", "upper unicode")
LOWER = [CASES.index(case) for case in ("lower", "lower unicode")]
UPPER = [CASES.index(case) for case in ("upper", "upper unicode")]


class Twin(NamedTuple):
    """A letter of Unicode that becomes an ASCII letter in one of the cases.

    >>> len(Twin(CASES.index("upper unicode"), "ſ", "S").letter.encode())  # bytes that become one
    2
    """

    case: int
    letter: str
    ascii_letter: str


ASCII_TWINS = (
    Twin(LOWER[1], "\u212a", "k"),  # the kelvin sign
    Twin(LOWER[1], "\u0130", "i"),
    Twin(UPPER[1], "\u0131", "I"),
    Twin(UPPER[1], "\u017f", "S"),
)


def append_text(text: Any, begin: Expr, size: Expr, case: Expr, out: Any, used: Any) -> None:
    """Puts `size` bytes of `text` behind the used[0] bytes of `out`, in a case that is a place in CASES.

    used[0] ends beyond the length of `out` where `out` has no room.
    """
    room = int(out.shape[0])
    at = T.alloc_buffer((1,), "int32", scope="global")
    T.buffer_store(at, T.int32(0), [0])
    with T.While(T.And(at[0] < size, used[0] <= room)):

        def here(ahead: int = 0) -> Expr:
            return T.cast(text[begin + T.min(at[0] + ahead, size - 1)], "int32")

        letter, steps = here(), T.int32(1)
        is_upper = T.And(letter >= ord("A"), letter <= ord("Z"))
        is_lower = T.And(letter >= ord("a"), letter <= ord("z"))
        shift = T.Select(T.And(_is_one_of(case, LOWER), is_upper), T.int32(32), T.int32(0))
        letter = letter + T.Select(T.And(_is_one_of(case, UPPER), is_lower), T.int32(-32), shift)
        for twin in ASCII_TWINS:  # two or three bytes of UTF-8 become one
            bytes_ = twin.letter.encode()
            same = T.And(case == twin.case, at[0] + len(bytes_) <= size)
            for ahead, byte in enumerate(bytes_):
                same = T.And(same, here(ahead) == byte)
            same = T.bind(same)
            letter = T.Select(same, T.int32(ord(twin.ascii_letter)), letter)
            steps = T.Select(same, T.int32(len(bytes_)), steps)
        letter, steps = in_register(letter), in_register(steps)
        with when(used[0] < room):
            T.buffer_store(out, T.cast(letter, "uint8"), [used[0]])
        T.buffer_store(used, used[0] + 1, [0])
        T.buffer_store(at, at[0] + steps, [0])


def _is_one_of(value: Expr, numbers: Sequence[int]) -> Expr:
    one, other = numbers
    return T.Or(value == one, value == other)

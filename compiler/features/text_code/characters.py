"""A text's characters as generated code: UTF-8 is decoded, and each malformed part is U+FFFD, as in `tf.strings`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.features.text_code.clean_text import is_one_of
from veltair.compiler.features.text_code.word_arithmetic import in_register

LONGEST = 4  # bytes of a character
MALFORMED = "\ufffd".encode()


@contextmanager
def for_each_character(
    text: Any, begin: Expr, end: Expr, left_out: bytes, left: Expr, character: Any
) -> Iterator[Expr]:
    """Code for each character of [begin, end) of `text`, while `left` of them are wanted: its size.

    Its bytes are in `character` (LONGEST), since those of a malformed part are not in the text. left_out: bytes that
    are passed over before anything is decoded.
    """
    at = T.alloc_buffer((1,), "int32", scope="global")  # the next byte
    scan, count = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(2))
    after = T.alloc_buffer((LONGEST,), "int32", scope="global")  # the place behind each byte of `character`
    T.buffer_store(at, begin, [0])
    with T.While(T.And(at[0] < end, left > 0)):
        T.buffer_store(scan, at[0], [0])
        T.buffer_store(count, T.int32(0), [0])
        with T.While(T.And(scan[0] < end, count[0] < LONGEST)):
            byte = in_register(T.cast(text[scan[0]], "uint8"))
            T.buffer_store(scan, scan[0] + 1, [0])
            T.buffer_store(character, byte, [count[0]])
            T.buffer_store(after, scan[0], [count[0]])
            kept = T.Not(is_one_of(byte, left_out)) if left_out else T.bool(True)
            T.buffer_store(count, count[0] + T.cast(kept, "int32"), [0])
        T.buffer_store(at, scan[0], [0])  # where nothing is left
        with when(count[0] > 0):
            well_formed, size = _decode(character, in_register(count[0]))
            T.buffer_store(at, after[size - 1], [0])
            with when(T.Not(well_formed)):
                for place, byte_ in enumerate(MALFORMED):
                    T.buffer_store(character, T.uint8(byte_), [place])
            yield in_register(T.Select(well_formed, size, T.int32(len(MALFORMED))))


def _decode(character: Any, count: Expr) -> tuple[Expr, Expr]:
    """Whether the first of `count` bytes begin with a character, and how many of them it, or a malformed part, has.

    Unicode 3.9, table 3-7: a malformed part is the longest start of a character, or else one byte.
    """
    first, *others = (in_register(T.cast(character[place], "int32")) for place in range(LONGEST))
    more = T.Select(first < 0xF0, T.Select(first < 0xE0, T.int32(1), T.int32(2)), T.int32(3))
    leads = T.And(first >= 0xC2, first <= 0xF4)
    more = in_register(T.Select(first < 0x80, T.int32(0), T.Select(leads, more, T.int32(-1))))
    low = T.Select(first == 0xE0, T.int32(0xA0), T.Select(first == 0xF0, T.int32(0x90), T.int32(0x80)))
    high = T.Select(first == 0xED, T.int32(0x9F), T.Select(first == 0xF4, T.int32(0x8F), T.int32(0xBF)))
    found, right = T.int32(0), T.bool(True)
    for place, byte in enumerate(others, 1):
        least, most = (low, high) if place == 1 else (T.int32(0x80), T.int32(0xBF))
        follows = T.And(T.And(byte >= least, byte <= most), T.And(count > place, more >= place))
        right = T.bind(T.And(right, follows))
        found = in_register(found + T.cast(right, "int32"))
    return T.bind(found == more), in_register(found + 1)

"""A text's tokens as generated code: where each begins and ends, one after the other. No token is copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import prefetch
from veltair.compiler.codegen.vectors import Expr, broadcast, ramp
from veltair.compiler.features.text_code.integer_digits import count_trailing_zeros
from veltair.compiler.features.text_code.word_arithmetic import in_register

BLOCK = 32  # bytes compared with the separator at once: an AVX2 register
USUAL = 4  # separators that most blocks have at most
NOTED = 128  # tokens that are found before the first of them is used
FETCHED = 1024  # bytes ahead that are prefetched


@contextmanager
def for_each_token(
    text: Any, begin: Expr, end: Expr, separator: Expr | bytes, left: Expr
) -> Iterator[tuple[Expr, Expr]]:
    """Code for each token (its begin, its size) in one pass (AtRec IV-A, fig. 7), while `left` of them are wanted.

    The text is [begin, end) of the buffer `text`; tokens end at the separator, or at each of several. The ends of NOTED
    tokens are found in advance, but no more than are wanted: a branch for each token would be guessed wrongly
    about as often as tokens differ in length.
    """
    at = T.alloc_buffer((2,), "int32", scope="global")  # where the next token and the next block begin
    ends = T.alloc_buffer((NOTED + BLOCK,), "int32", scope="global")  # of the tokens found; a block adds up to BLOCK
    noted, done = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(2))  # tokens found, tokens used
    T.buffer_store(at, begin, [0])
    T.buffer_store(at, begin, [1])
    with T.While(T.And(at[0] <= end, left > 0)):
        T.buffer_store(noted, T.int32(0), [0])
        T.buffer_store(done, T.int32(0), [0])
        enough = in_register(T.min(left, T.int32(NOTED)))
        with T.While(T.And(at[1] <= end, noted[0] < enough)):
            _note_ends(text, in_register(at[1]), end, separator, ends, noted)
            T.buffer_store(at, at[1] + BLOCK, [1])
        with T.While(T.And(done[0] < noted[0], left > 0)):
            start, stop = in_register(at[0]), in_register(ends[done[0]])
            T.buffer_store(done, done[0] + 1, [0])
            T.buffer_store(at, stop + 1, [0])
            yield start, in_register(stop - start)


def _note_ends(text: Any, block: Expr, end: Expr, separator: Expr | bytes, ends: Any, noted: Any) -> None:
    """Appends to `ends` where tokens end in the 32 bytes from `block` on.

    Bit i of `found` says that a token ends at byte i. The text's own end is one, and bits behind it do not count.
    """
    found = T.alloc_buffer((1,), "uint32", scope="global")
    left, first = in_register(end - block), in_register(noted[0])
    prefetch(text[block + FETCHED], level=1)  # texts of a feature follow each other
    with T.If(block + BLOCK <= text.shape[0]):
        with T.Then():
            bytes_ = text[ramp(block, BLOCK)]
            same = T.Select(_separates(bytes_, separator, BLOCK), _every_byte(-1), _every_byte(0))
            mask = T.call_llvm_pure_intrin("int32", "llvm.x86.avx2.pmovmskb", same)
            T.buffer_store(found, T.reinterpret("uint32", mask), [0])
        with T.Else():  # 32 bytes would pass the end of all texts: byte by byte
            T.buffer_store(found, T.uint32(0), [0])
            with T.serial(0, T.min(left, BLOCK)) as i:
                bit = T.shift_left(T.cast(_separates(text[block + i], separator, 1), "uint32"), T.cast(i, "uint32"))
                T.buffer_store(found, T.bitwise_or(found[0], bit), [0])
    with when(left < BLOCK):
        last = in_register(T.shift_left(T.uint32(1), T.cast(left, "uint32")))
        T.buffer_store(found, T.bitwise_or(T.bitwise_and(found[0], last - T.uint32(1)), last), [0])
    count = in_register(T.cast(T.popcount(found[0]), "int32"))

    def note(place: Expr | int) -> None:
        """The lowest bit that is left; it is cleared."""
        T.buffer_store(ends, block + T.cast(count_trailing_zeros(found[0], 32), "int32"), [first + place])
        T.buffer_store(found, T.bitwise_and(found[0], found[0] - T.uint32(1)), [0])

    for place in range(USUAL):  # without a branch, whether there are so many or not: `count` says which are valid
        note(place)
    with when(count > USUAL), T.serial(USUAL, count) as place:
        note(place)
    T.buffer_store(noted, first + count, [0])


def _separates(bytes_: Expr, separator: Expr | bytes, count: int) -> Expr:
    """Which of `count` bytes are the separator, or one of several."""
    if not isinstance(separator, bytes):
        return bytes_ == broadcast(separator, count)
    bytes_ = in_register(bytes_)
    members = [bytes_ == broadcast(T.uint8(byte), count) for byte in separator]
    return reduce(T.Or, members)


def _every_byte(value: int) -> Expr:
    return T.broadcast(T.int8(value), BLOCK)

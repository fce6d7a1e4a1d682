"""Generated code that notes which indices a row of the batch has, so that each counts once."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.features.text_code.word_arithmetic import in_register, u64_constant


class SeenIndices:
    """A bit for each index, in `words` words of 64 bits.

    ::

        seen = SeenIndices(words=4)
        seen.clear()  # before each row
        with when(seen.is_new(index, inside)):  # once for each index of the row
            ...
    """

    def __init__(self, words: int) -> None:
        self._words = words
        self._bits = T.alloc_buffer((max(words, 1),), "uint64", scope="global")

    def clear(self) -> None:
        with T.serial(0, self._words) as word:
            T.buffer_store(self._bits, T.uint64(0), [word])

    def is_new(self, index: Expr, inside: Expr) -> Expr:
        """Whether an index is one that counts (`inside`) and was not there since `clear`; it is noted."""
        word = in_register(T.Select(inside, T.shift_right(index, 6), T.int32(0)))
        bit = in_register(T.shift_left(u64_constant(1), T.cast(T.bitwise_and(index, 63), "uint64")))
        new = T.alloc_buffer((1,), "int32", scope="global")
        T.buffer_store(new, T.cast(T.bitwise_and(self._bits[word], bit) == u64_constant(0), "int32"), [0])
        with when(inside):
            T.buffer_store(self._bits, T.bitwise_or(self._bits[word], bit), [word])
        return T.And(inside, new[0] == 1)

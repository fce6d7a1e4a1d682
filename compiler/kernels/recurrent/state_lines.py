"""A state of a recurrent layer in memory."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.bf16 import float32_to_bf16
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.vectors import LANES, Expr


class StateLines:
    """Lines of one vector each for every place, a tile or a row. Made where its memory is to live.

    In bfloat16, a place has two lines more: an AMX tile takes two lines a step and may reach behind the last one, and
    the rows of a tile do not fall into the same sets of the cache.

    ::

        state = StateLines(places=4, lines=2 * 32, narrow=False)
        state.store(place, line, new)
    """

    def __init__(self, places: int, lines: int, narrow: bool) -> None:
        """narrow: products take the state in bfloat16, which then lies beside the floats."""
        self.floats = T.alloc_buffer((places, lines, LANES), "float32", scope="global")
        self.lines = lines
        self.bits: Any = T.alloc_buffer((places, (lines + 2) * LANES), "uint16", scope="global") if narrow else None
        self.multiplied_as = "uint16" if narrow else "float32"

    def load(self, place: Expr, line: Expr) -> Expr:
        return vector_load(self.floats, place, line, 0)

    def store(self, place: Expr, line: Expr, value: Expr) -> None:
        value = T.bind(value)
        vector_store(self.floats, value, place, line, 0)
        if self.bits is not None:
            T.buffer_store(self.bits, float32_to_bf16(value), [place, T.ramp(line * LANES, 1, LANES)])

    def clear(self, place: Expr) -> None:
        """Set what tiles multiply with zeros to zero: it may be no number."""
        if self.bits is not None:
            with T.serial(0, self.lines + 2) as line:
                T.buffer_store(self.bits, T.broadcast(T.uint16(0), LANES), [place, T.ramp(line * LANES, 1, LANES)])

"""A state of a recurrent layer in memory."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.bf16 import float32_to_bf16
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.vectors import LANES, Expr


class StateLines:
    """Lines of one vector each for every place, a tile or a row. Made where its memory is to live.

    ::

        state = StateLines(places=4, lines=2 * 32, narrow=False)
        state.store(place, line, new)
    """

    def __init__(self, places: int, lines: int, narrow: bool) -> None:
        """narrow: products take the state in bfloat16, which then lies beside the floats."""
        self.floats = T.alloc_buffer((places, lines, LANES), "float32", scope="global")
        self.bits = T.alloc_buffer((places, lines * LANES), "uint16", scope="global") if narrow else None
        self.multiplied_as = "uint16" if narrow else "float32"

    def load(self, place: Expr, line: Expr) -> Expr:
        return vector_load(self.floats, place, line, 0)

    def store(self, place: Expr, line: Expr, value: Expr) -> None:
        value = T.bind(value)
        vector_store(self.floats, value, place, line, 0)
        if self.bits is not None:
            T.buffer_store(self.bits, float32_to_bf16(value), [place, T.ramp(line * LANES, 1, LANES)])

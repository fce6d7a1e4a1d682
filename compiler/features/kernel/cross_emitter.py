"""Generated code for crosses: the values of several features hashed together, as TensorFlow's SparseCross does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.features.kernel.column_slots import NO_VALUE, PART_KINDS
from veltair.compiler.features.text_code.fingerprint_code import emit_fingerprint, joined_fingerprint
from veltair.compiler.features.text_code.word_arithmetic import in_register, u64

if TYPE_CHECKING:
    from veltair.compiler.features.kernel.index_emitter import IndexEmitter


class CrossEmitter:
    """Emits the bucket of one combination of a row's values into out[0], which stays as it is where a value is absent.

    Combinations are counted so that the last feature's values change fastest. A whole number is its own fingerprint.

    ::

        CrossEmitter(emitter, column, row).emit(place, out)
    """

    def __init__(self, emitter: IndexEmitter, column: Expr, row: Expr) -> None:
        self._emitter, self._column, self._row = emitter, column, row
        self._kinds = emitter.task.part_kinds

    def emit(self, place: Expr, out: Any) -> None:
        slot = self._emitter.slot
        joined, fingerprint = (T.alloc_buffer((1,), "uint64", scope="global") for _ in range(2))
        there = T.alloc_buffer((1,), "int32", scope="global")
        T.buffer_store(joined, slot(self._column, "cross_key", "uint64"), [0])
        T.buffer_store(there, T.int32(1), [0])
        with T.serial(0, slot(self._column, "cross_count")) as number:
            part = in_register(slot(self._column, "first_cross") + number)
            own = in_register(T.floormod(T.floordiv(place, slot(part, "part_stride")), slot(part, "values_per_row")))
            drops = T.bind(T.And(number == 0, slot(self._column, "drops_missing") == 1))  # the column's own feature
            kind = in_register(slot(part, "part_kind"))
            for name in ("integer", "other", "interval", "number key", "text key", "sparse integer"):
                if name in self._kinds:
                    with when(kind == PART_KINDS.index(name)):
                        self._part(name, part, own, drops, fingerprint, there)
            T.buffer_store(joined, joined_fingerprint(joined[0], fingerprint[0]), [0])
        with when(there[0] == 1):
            self._emitter.store_bucket(self._column, joined[0], out)

    def _part(self, kind: str, part: Expr, place: Expr, drops: Expr, fingerprint: Any, there: Any) -> None:
        """The fingerprint of one value of a part; `there` becomes 0 for none."""
        emitter, buffers = self._emitter, self._emitter.task.buffers
        if kind in ("integer", "sparse integer"):
            value = in_register(buffers["ints"][emitter.place_of(part, self._row, place)])
            absent = T.And(drops, value == emitter.slot(self._column, "missing_id", "int64"))
            if kind == "sparse integer":
                absent = T.Or(absent, value == emitter.slot(part, "missing_id", "int64"))
            with when(absent):
                T.buffer_store(there, T.int32(0), [0])
            T.buffer_store(fingerprint, u64(value), [0])
        elif kind == "other":
            begin, size = emitter.text(part, self._row, place)
            with when(T.And(drops, size == 0)):
                T.buffer_store(there, T.int32(0), [0])
            emit_fingerprint(buffers["bytes"], begin, size, fingerprint)
        else:
            index = T.alloc_buffer((1,), "int32", scope="global")
            emitter.emit_place(kind, in_register(emitter.slot(part, "step_row")), self._row, place, index)
            first = emitter.slot(part, "first_value") + place * emitter.slot(part, "value_stride")
            value = in_register(buffers["keys"][first + index[0]])
            with when(value == T.int64(NO_VALUE)):
                T.buffer_store(there, T.int32(0), [0])
            T.buffer_store(fingerprint, u64(value), [0])

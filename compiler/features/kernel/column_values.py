"""Generated code that finds the values of a column among the raw features: numbers, texts, tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.features.feature_description import ColumnStep
from veltair.compiler.features.hashed_values import white_space_without
from veltair.compiler.features.kernel.code_path import CodePath, ValueKind
from veltair.compiler.features.kernel.column_slots import slot_of
from veltair.compiler.features.kernel.column_task import ColumnTask
from veltair.compiler.features.text_code.characters import LONGEST, for_each_character
from veltair.compiler.features.text_code.clean_text import CasedText, emit_has_rest
from veltair.compiler.features.text_code.tokens import for_each_token
from veltair.compiler.features.text_code.word_arithmetic import in_register

PLAIN = CodePath(ValueKind.STRING, ColumnStep.HASH)  # texts as they are


class ColumnValues:
    """Emits reads of a column's slots and values. To be made inside the task that runs it.

    `column`, here and in the classes that build on it, is the column's row in the column table.

    ::

        values = ColumnValues(task)
        width = values.slot(column, "row_width")
        number = task.buffers["ints"][values.place_of(column, row)]
    """

    def __init__(self, task: ColumnTask) -> None:
        self.task = task
        self.path = PLAIN
        self._character: Any = None  # of a text that is split into characters: the one that is read

    def read_texts(self, path: CodePath) -> None:
        """From here on texts are split and looked up as this path has it: their case, what is left out of them."""
        self.path = path

    def slot(self, column: Expr, field: str, dtype: str = "int32") -> Expr:
        """A number of the column's row, by the name of its field in `COLUMN_DTYPE`."""
        return in_register(T.cast(self.task.buffers["columns"][column, slot_of(field)], dtype))

    @property
    def letters(self) -> Any:
        """The buffer in which texts and tokens lie."""
        return self._character if self.path.at_characters else self.task.buffers["bytes"]

    def is_missing(self, column: Expr, value: Expr) -> Expr:
        return T.And(self.slot(column, "drops_missing") == 1, value == self.slot(column, "missing_id", "int64"))

    def place_of(self, column: Expr, row: Expr, value: Expr | int = 0) -> Expr:
        """Where a number stands in its packed buffer."""
        source, width = self.slot(column, "source_start", "int64"), self.slot(column, "values_per_row", "int64")
        of_row = source * T.cast(self.task.batch, "int64") + T.cast(row, "int64") * width
        return in_register(of_row + T.cast(value, "int64"))

    def text(self, column: Expr, row: Expr, value: Expr | int = 0) -> tuple[Expr, Expr]:
        """Begin and size of a row's text, or of one of its texts, in "bytes".

        A text whose ends fall, or pass the room of its feature, is empty: ends come from outside, and nothing but the
        feature's own bytes is read.
        """
        ends, batch = self.task.buffers["ends"], self.task.batch
        place = in_register(row * T.max(self.slot(column, "values_per_row"), 1) + value)  # a part has no width
        at = in_register(self.slot(column, "source_start") * batch + place)
        begin = in_register(T.Select(place > 0, ends[T.max(at - 1, 0)], T.int32(0)))
        end = in_register(ends[at])
        room = self.slot(column, "bytes_room") * batch
        unsigned = [T.cast(value, "uint32") for value in (begin, end, room)]
        right = T.bind(T.And(unsigned[0] <= unsigned[1], unsigned[1] <= unsigned[2]))
        first = in_register(self.slot(column, "bytes_start") * batch)
        start = in_register(first + T.Select(right, begin, T.int32(0)))
        return start, in_register(T.Select(right, end - begin, T.int32(0)))

    @contextmanager
    def for_each_text(self, column: Expr, kind: ValueKind, row: Expr) -> Iterator[tuple[Expr, Expr]]:
        """Code for each text, or token, of a row that is not missing: begin and size."""
        if kind is ValueKind.STRING:
            drops = T.bind(self.slot(column, "drops_missing") == 1)
            with T.serial(0, self.slot(column, "values_per_row")) as place:
                begin, size = self.text(column, row, place)
                with when(T.Or(T.Not(drops), self._has_bytes(begin, size))):
                    yield begin, size
            return
        begin, size = self.text(column, row)
        kept = T.alloc_buffer((1,), "int32", scope="global")
        drops = T.bind(self.slot(column, "drops_missing") == 1)
        if self.path.at_characters:
            left = self.slot(column, "token_limit") - kept[0]
            T.buffer_store(kept, T.int32(0), [0])
            text: Any = self.task.buffers["bytes"]
            cased = text if self.path.case is None else CasedText(text, self.path.case)
            self._character = T.alloc_buffer((LONGEST,), "uint8", scope="global")
            characters = for_each_character(cased, begin, begin + size, self.path.removes, left, self._character)
            with characters as length:
                T.buffer_store(kept, kept[0] + 1, [0])
                yield T.int32(0), length
            return
        separator: Expr | bytes = self.slot(column, "separator", "uint8")
        if self.path.at_white_space:
            separator = white_space_without(self.path.removes)
        T.buffer_store(kept, T.int32(0), [0])
        left = self.slot(column, "token_limit") - kept[0]
        tokens = for_each_token(self.task.buffers["bytes"], begin, begin + size, separator, left)
        with tokens as (start, length), when(T.Or(T.Not(drops), self._has_bytes(start, length))):
            T.buffer_store(kept, kept[0] + 1, [0])
            yield start, length

    def _has_bytes(self, begin: Expr, size: Expr) -> Expr:
        """Whether a text has a byte that is not left out."""
        if not self.path.removes:
            return size > 0
        text: Any = self.task.buffers["bytes"]
        if self.path.case is not None:
            text = CasedText(text, self.path.case)
        return T.bind(emit_has_rest(text, begin, size, self.path.removes))

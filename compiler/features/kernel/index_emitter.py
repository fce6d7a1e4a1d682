"""Generated code from the values of features to indices of rows: hashes, vocabularies, ids, and guards on them.

Boundaries take many rows at a time and have a module of their own, `bucketize`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import Expr, broadcast
from veltair.compiler.features.feature_description import ColumnStep
from veltair.compiler.features.kernel.code_path import ValueKind
from veltair.compiler.features.kernel.column_slots import PART_KINDS
from veltair.compiler.features.kernel.column_values import ColumnValues
from veltair.compiler.features.kernel.cross_emitter import CrossEmitter
from veltair.compiler.features.kernel.slot_writer import ABSENT, EDGES
from veltair.compiler.features.text_code.clean_text import CasedText, copy_without, emit_stripped
from veltair.compiler.features.text_code.fingerprint_code import emit_fingerprint
from veltair.compiler.features.text_code.integer_digits import DIGITS, LONGEST, emit_digits
from veltair.compiler.features.text_code.letter_case import append_text
from veltair.compiler.features.text_code.siphash_code import emit_siphash
from veltair.compiler.features.text_code.word_arithmetic import in_register, remainder, u64, u64_constant


class IndexEmitter(ColumnValues):
    """Emits the index of each value of a column: an int32 in out[0], ABSENT where there is none.

    ::

        index = T.alloc_buffer((1,), "int32", scope="global")
        with emitter.for_each_value(column, path.kind, path.step, row, index):
            found = in_register(index[0])
    """

    def emit_index(self, column: Expr, kind: ValueKind, step: ColumnStep, row: Expr, out: Any) -> None:
        """The index of the only value of a row, without guards."""
        T.buffer_store(out, T.int32(ABSENT), [0])
        if step is ColumnStep.CROSS:
            CrossEmitter(self, column, row).emit(T.int32(0), out)
        elif kind is ValueKind.INT:
            value = in_register(self.task.buffers["ints"][self.place_of(column, row)])
            with when(T.Not(self.is_missing(column, value))):
                self._index_of_int(column, step, row, value, out)
        else:
            with self.for_each_text(column, kind, row) as (begin, size):
                self._index_of_text(column, step, row, begin, size, out)

    @contextmanager
    def for_each_value(
        self, column: Expr, kind: ValueKind, step: ColumnStep | None, row: Expr, out: Any
    ) -> Iterator[None]:
        """Code for each value of a row that is not missing, with its guarded index in `out`.

        Without a step no index is computed.
        """

        def guard() -> None:
            with T.serial(0, self.slot(column, "guard_count")) as i:
                number = in_register(self.slot(column, "first_guard") + i)
                T.buffer_store(out, self.guarded(number, out[0], 1), [0])

        if step is ColumnStep.CROSS:
            with T.serial(0, self.slot(column, "values_per_row")) as place:
                T.buffer_store(out, T.int32(ABSENT), [0])
                CrossEmitter(self, column, row).emit(place, out)
                guard()
                yield
            return
        if kind is ValueKind.INT:
            with T.serial(0, self.slot(column, "values_per_row")) as place:
                value = in_register(self.task.buffers["ints"][self.place_of(column, row, place)])
                with when(T.Not(self.is_missing(column, value))):
                    if step is not None:
                        self._index_of_int(column, step, row, value, out)
                        guard()
                    yield
            return
        if kind is ValueKind.FLOATS:
            with T.serial(0, self.slot(column, "values_per_row")) as place:
                self.emit_place("interval", column, row, place, out)
                guard()
                yield
            return
        with self.for_each_text(column, kind, row) as (begin, size):
            if step is not None:
                self._index_of_text(column, step, row, begin, size, out)
                guard()
            yield

    def guarded(self, guard: Expr, index: Expr, count: int) -> Expr:
        """`count` indices after a guard, a row of "guards": outside of its interval, its value or ABSENT."""
        removes, low, high, value = (in_register(self.task.buffers["guards"][guard, place]) for place in range(4))
        instead = in_register(T.Select(removes == 1, T.int32(ABSENT), value))
        index = in_register(index)
        outside = T.Or(index < broadcast(low, count), index >= broadcast(high, count))
        present = index != broadcast(T.int32(ABSENT), count)
        return T.Select(T.And(outside, present), broadcast(instead, count), index)

    def _index_of_int(self, column: Expr, step: ColumnStep, row: Expr, value: Expr, out: Any) -> None:
        if step is ColumnStep.IDENTITY:
            inside = u64(value) < self.slot(column, "id_count", "uint64")
            T.buffer_store(out, T.Select(inside, T.cast(value, "int32"), self.slot(column, "default_index")), [0])
            return
        digits = T.alloc_buffer((DIGITS,), "uint8", scope="global")
        fingerprint = T.alloc_buffer((1,), "uint64", scope="global")
        begin, size = emit_digits(value, digits)
        keyed = partial(self._keyed, column, step, digits, begin, size, value)
        if step is ColumnStep.KEYED_HASH:
            self.store_bucket(column, keyed(), out)
            return
        emit_fingerprint(digits, begin, size, fingerprint, longest=LONGEST)
        if step is ColumnStep.HASH:
            self.store_bucket(column, fingerprint[0], out)
        else:
            self._find_key(
                column, fingerprint[0], value, _always, out, keyed if step is not ColumnStep.VOCABULARY else None
            )

    def _index_of_text(self, column: Expr, step: ColumnStep, row: Expr, begin: Expr, size: Expr, out: Any) -> None:
        if step is ColumnStep.PARTS:
            self._index_of_parts(column, row, begin, size, out)
            return
        letters = self.letters
        if self.path.strips:
            begin, size = emit_stripped(letters, begin, size)
        if self.path.case is not None and not self.path.at_characters:
            letters = CasedText(letters, self.path.case)
        if self.path.removes and not self.path.at_characters:
            self._index_of_rest(column, letters, begin, size, out)
            return
        keyed = partial(self._keyed, column, step, letters, begin, size)
        if step in (ColumnStep.VOCABULARY, ColumnStep.KEYED_VOCABULARY):
            self._find_word(column, letters, begin, size, out, None if step is ColumnStep.VOCABULARY else keyed)
            return
        if step is ColumnStep.KEYED_HASH:
            self.store_bucket(column, keyed(), out)
            return
        fingerprint = T.alloc_buffer((1,), "uint64", scope="global")
        emit_fingerprint(letters, begin, size, fingerprint)
        self.store_bucket(column, fingerprint[0], out)

    def emit_place(self, kind: str, column: Expr, row: Expr, value: Expr, out: Any) -> None:
        """The place of a row's value among boundaries or keys: one of PART_KINDS. `column`: the row that has these."""
        if kind == "interval":
            number = in_register(self.task.buffers["floats"][self.place_of(column, row, value)])
            first, count = self.slot(column, "first_boundary"), self.slot(column, "boundary_count")
            T.buffer_store(out, count, [0])  # less those that it is below: NaN is below none
            with T.serial(0, T.ceildiv(count, EDGES) * EDGES) as place:
                edge = in_register(self.task.buffers["edges"][first + place])
                finite = edge < T.float32("inf")
                T.buffer_store(out, out[0] - T.cast(T.And(number < edge, finite), "int32"), [0])
        elif kind == "number key":
            found = in_register(self.task.buffers["ints"][self.place_of(column, row, value)])
            self._index_of_int(column, ColumnStep.VOCABULARY, row, found, out)
        else:
            begin, size = self.text(column, row, value)
            self._find_word(column, self.task.buffers["bytes"], begin, size, out)

    def _keyed(
        self, column: Expr, step: ColumnStep, text: Any, begin: Expr, size: Expr, number: Expr | None = None
    ) -> Expr:
        """What a value's bucket is the remainder of: SipHash of its text, or its own remainder."""
        whole = step is ColumnStep.KEYED_HASH
        how = in_register(self.slot(column, "hash_row" if whole else "unknown_row"))
        found = T.alloc_buffer((1,), "uint64", scope="global")
        remains = T.bind(self.slot(how, "by_remainder") == 1)
        if number is not None:
            buckets = self.slot(column, "buckets" if whole else "unknown_buckets", "int64")
            with when(remains):
                T.buffer_store(found, u64(T.floormod(number, buckets)), [0])
        with when(T.Not(remains)):
            key = self.slot(how, "first_word", "uint64"), self.slot(how, "second_word", "uint64")
            emit_siphash(text, begin, size, key, found)
        return in_register(found[0])

    def _index_of_parts(self, column: Expr, row: Expr, begin: Expr, size: Expr, out: Any) -> None:
        """Joins the texts of the parts, no more of them than the longest key has: what is longer is no key."""
        buffers, longest = self.task.buffers, max(self.task.longest_key, 1)
        joined = T.alloc_buffer((longest,), "uint8", scope="global")
        used = T.alloc_buffer((1,), "int32", scope="global")  # bytes; beyond `longest` for what is longer
        T.buffer_store(used, T.int32(0), [0])
        with T.serial(0, self.slot(column, "part_count")) as number:
            part = in_register(self.slot(column, "first_part") + number)
            kind, case = self.slot(part, "part_kind"), self.slot(part, "letter_case")
            with T.If(kind == PART_KINDS.index("constant")):
                with T.Then():
                    first, count = self.slot(part, "text_start"), self.slot(part, "text_bytes")
                    append_text(buffers["letters"], first, count, case, joined, used)
                with T.Else():
                    own = T.bind(kind == PART_KINDS.index("own"))
                    first, count = self.text(T.Select(own, column, part), row)
                    first, count = T.Select(own, begin, first), T.Select(own, size, count)
                    append_text(buffers["bytes"], in_register(first), in_register(count), case, joined, used)
        T.buffer_store(out, self.slot(column, "default_index"), [0])
        with when(used[0] <= longest):
            self._find_word(column, joined, T.int32(0), in_register(used[0]), out)

    def _index_of_rest(self, column: Expr, letters: Any, begin: Expr, size: Expr, out: Any) -> None:
        """Looks up a text without the bytes that are left out, no more of it than the longest key has."""
        longest = max(self.task.longest_key, 1)
        rest = T.alloc_buffer((longest,), "uint8", scope="global")
        used = T.alloc_buffer((1,), "int32", scope="global")  # bytes; beyond `longest` for what is longer
        copy_without(letters, begin, size, self.path.removes, rest, used)
        T.buffer_store(out, self.slot(column, "default_index"), [0])
        with when(used[0] <= longest):
            self._find_word(column, rest, T.int32(0), in_register(used[0]), out)

    def store_bucket(self, column: Expr, fingerprint: Expr, out: Any) -> None:
        """Stores the bucket that a fingerprint leads to in out[0]."""
        buckets, reciprocal = (self.slot(column, field, "uint64") for field in ("buckets", "reciprocal"))
        T.buffer_store(out, T.cast(remainder(fingerprint, buckets, reciprocal), "int32"), [0])

    def _find_word(
        self,
        column: Expr,
        letters: Any,
        begin: Expr,
        size: Expr,
        out: Any,
        keyed: Callable[[], Expr] | None = None,
    ) -> None:
        """The index of a text in its vocabulary. Texts of one fingerprint are compared byte by byte."""
        fingerprint = T.alloc_buffer((1,), "uint64", scope="global")
        emit_fingerprint(letters, begin, size, fingerprint)

        def same(entry: Expr) -> Expr:
            spans, words = self.task.buffers["spans"], self.task.buffers["letters"]
            first = in_register(spans[entry])
            equal = T.alloc_buffer((1,), "int32", scope="global")
            T.buffer_store(equal, T.cast(spans[entry + 1] - first == size, "int32"), [0])
            with when(equal[0] == 1), T.serial(0, size) as i:
                equal_byte = T.cast(letters[begin + i] == words[first + i], "int32")
                T.buffer_store(equal, T.bitwise_and(equal[0], equal_byte), [0])
            return equal[0] == 1

        self._find_key(column, fingerprint[0], T.reinterpret("int64", fingerprint[0]), same, out, keyed)

    def _find_key(
        self,
        column: Expr,
        fingerprint: Expr,
        key: Expr,
        same: Callable[[Expr], Expr],
        out: Any,
        keyed: Callable[[], Expr] | None = None,
    ) -> None:
        """A key's place in its vocabulary, else a bucket behind the vocabulary, else the default.

        The vocabulary is a table with open addresses (`Vocabularies`): probing starts at the slot that the fingerprint
        says and ends at a slot that is empty. `same` decides whether an entry with an equal key is the one. `keyed`
        emits what the bucket of an unknown key is the remainder of; default: the fingerprint.
        """
        slots, keys = self.task.buffers["slots"], self.task.buffers["keys"]
        first, mask = self.slot(column, "first_slot"), self.slot(column, "slot_count") - 1
        first_key, unknown = self.slot(column, "first_key"), self.slot(column, "unknown_buckets")
        probe = T.alloc_buffer((2,), "int32", scope="global")  # the slot; 1 to go on
        fingerprint = in_register(fingerprint)
        low = T.cast(T.bitwise_and(fingerprint, u64_constant(0x7FFFFFFF)), "int32")
        T.buffer_store(probe, T.bitwise_and(low, mask), [0])
        T.buffer_store(probe, T.int32(1), [1])
        with T.While(probe[1] == 1):
            place = in_register(slots[first + probe[0]])
            with T.If(place < 0):
                with T.Then():
                    T.buffer_store(probe, T.int32(0), [1])
                    with T.If(unknown > 0):
                        with T.Then():
                            hashed = fingerprint if keyed is None else keyed()
                            bucket = T.cast(T.floormod(hashed, u64(unknown)), "int32")
                            T.buffer_store(out, self.slot(column, "key_count") + bucket, [0])
                        with T.Else():
                            T.buffer_store(out, self.slot(column, "default_index"), [0])
                with T.Else():
                    entry = in_register(first_key + place)
                    with when(keys[entry] == key), when(same(entry)):
                        T.buffer_store(out, place, [0])
                        T.buffer_store(probe, T.int32(0), [1])
                    T.buffer_store(probe, T.bitwise_and(probe[0] + 1, mask), [0])


def _always(entry: Expr) -> Expr:
    """An entry with an equal number is the one: numbers are compared whole."""
    return T.bool(True)

"""From the values of features to indices of rows: hashes, boundaries, vocabularies, ids, and guards on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.features.kernel import text
from veltair.compiler.features.kernel.column_table import ABSENT, PART_KINDS, Field, PartField
from veltair.compiler.features.kernel.hashing import fingerprint, in_register, remainder, u64, u64_constant
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.vectors import Expr, broadcast


@dataclass(frozen=True, slots=True)
class ColumnTask:
    """One task: `many` columns from `first` on, `count` rows from `start` on."""

    buffers: dict[str, Any]
    first: Expr
    many: Expr
    start: Expr
    count: Expr
    batch: Expr
    rows: int  # most rows of a tile
    columns: int  # most columns of a chunk
    ahead: bool  # whether rows of large tables are fetched before they are read
    longest: int  # bytes of a vocabulary's key
    widest: int  # numbers of a row of any table
    permutes: bool  # whether the CPU takes 16 numbers from 16 by index


class IndexEmitter:
    """Code for the indices of a column's values."""

    def __init__(self, work: ColumnTask) -> None:
        self.work = work

    def field(self, column: Expr, field: Field | PartField, dtype: str = "int32") -> Expr:
        return in_register(T.cast(self.work.buffers["columns"][column, int(field)], dtype))

    def missing(self, column: Expr, value: Expr) -> Expr:
        return T.And(self.field(column, Field.DROPS) == 1, value == self.field(column, Field.MISSING, "int64"))

    def at(self, column: Expr, row: Expr, value: Expr | int = 0) -> Expr:
        """Where a number stands in the merged input."""
        source, width = self.field(column, Field.SOURCE, "int64"), self.field(column, Field.WIDTH, "int64")
        return in_register(
            source * T.cast(self.work.batch, "int64") + T.cast(row, "int64") * width + T.cast(value, "int64")
        )

    def text(self, column: Expr, row: Expr) -> tuple[Expr, Expr]:
        """Begin and size of a row's text; one that falls, or passes the end of its feature's bytes, is empty."""
        ends, batch = self.work.buffers["ends"], self.work.batch
        at = in_register(self.field(column, Field.SOURCE) * batch + row)
        begin = in_register(T.Select(row > 0, ends[T.max(at - 1, 0)], T.int32(0)))
        end = in_register(ends[at])
        room = self.field(column, Field.ROOM) * batch
        unsigned = [T.cast(value, "uint32") for value in (begin, end, room)]
        right = T.bind(T.And(unsigned[0] <= unsigned[1], unsigned[1] <= unsigned[2]))
        first = in_register(self.field(column, Field.LETTERS) * batch)
        return in_register(first + T.Select(right, begin, T.int32(0))), in_register(
            T.Select(right, end - begin, T.int32(0))
        )

    def index(self, column: Expr, kind: str, step: str, row: Expr, out: Any) -> None:
        """The index of a feature's only value, or ABSENT."""
        T.buffer_store(out, T.int32(ABSENT), [0])
        if kind == "int":
            value = in_register(self.work.buffers["ints"][self.at(column, row)])
            with when(T.Not(self.missing(column, value))):
                self.of_int(column, step, value, out)
        else:
            with self.texts(column, kind, row) as (begin, size):
                self.of_text(column, step, row, begin, size, out)

    @contextmanager
    def texts(self, column: Expr, kind: str, row: Expr) -> Iterator[tuple[Expr, Expr]]:
        """Code for each text of a row that is there: begin and size."""
        begin, size = self.text(column, row)
        kept = T.alloc_buffer((1,), "int32", scope="global")
        drops = T.bind(self.field(column, Field.DROPS) == 1)
        if kind == "string":
            with when(T.Or(T.Not(drops), size > 0)):
                yield begin, size
            return
        separator = self.field(column, Field.SEPARATOR, "uint8")
        T.buffer_store(kept, T.int32(0), [0])
        left = self.field(column, Field.LIMIT) - kept[0]
        found = text.tokens(self.work.buffers["bytes"], begin, begin + size, separator, left)
        with found as (start, length), when(T.Or(T.Not(drops), length > 0)):
            T.buffer_store(kept, kept[0] + 1, [0])
            yield start, length

    @contextmanager
    def values(self, column: Expr, kind: str, step: str, row: Expr, out: Any) -> Iterator[None]:
        """Code for each value of a row that is there, with its guarded index in `out`; no step: none is looked for."""

        def guard() -> None:
            with T.serial(0, self.field(column, Field.GUARDS)) as i:
                number = in_register(self.field(column, Field.GUARD) + i)
                T.buffer_store(out, self.guarded(number, out[0], 1), [0])

        if kind == "int":
            with T.serial(0, self.field(column, Field.WIDTH)) as place:
                value = in_register(self.work.buffers["ints"][self.at(column, row, place)])
                with when(T.Not(self.missing(column, value))):
                    if step:
                        self.of_int(column, step, value, out)
                        guard()
                    yield
            return
        with self.texts(column, kind, row) as (begin, size):
            if step:
                self.of_text(column, step, row, begin, size, out)
                guard()
            yield

    def of_int(self, column: Expr, step: str, value: Expr, out: Any) -> None:
        if step == "identity":
            inside = u64(value) < self.field(column, Field.SIZE, "uint64")
            T.buffer_store(out, T.Select(inside, T.cast(value, "int32"), self.field(column, Field.DEFAULT)), [0])
            return
        digits = T.alloc_buffer((text.DIGITS,), "uint8", scope="global")
        print_ = T.alloc_buffer((1,), "uint64", scope="global")
        begin, size = text.decimal(value, digits)
        fingerprint(digits, begin, size, print_, longest=20)
        if step == "hash":
            self._bucket(column, print_[0], out)
        else:
            self._known(column, print_[0], value, lambda entry: T.bool(True), out)

    def of_text(self, column: Expr, step: str, row: Expr, begin: Expr, size: Expr, out: Any) -> None:
        if step == "parts":
            self._of_parts(column, row, begin, size, out)
            return
        letters = self.work.buffers["bytes"]
        if step == "vocabulary":
            self._word(column, letters, begin, size, out)
            return
        print_ = T.alloc_buffer((1,), "uint64", scope="global")
        fingerprint(letters, begin, size, print_)
        self._bucket(column, print_[0], out)

    def _of_parts(self, column: Expr, row: Expr, begin: Expr, size: Expr, out: Any) -> None:
        """Texts one after the other, no more of them than the longest key has: what is longer is no key."""
        buffers, longest = self.work.buffers, max(self.work.longest, 1)
        joined = T.alloc_buffer((longest,), "uint8", scope="global")
        used = T.alloc_buffer((1,), "int32", scope="global")  # bytes; beyond `longest` for what is longer
        T.buffer_store(used, T.int32(0), [0])
        with T.serial(0, self.field(column, Field.RECIPROCAL)) as number:
            part = in_register(self.field(column, Field.MISSING) + number)
            kind, case = self.field(part, PartField.KIND), self.field(part, PartField.CASE)
            with T.If(kind == PART_KINDS.index("constant")):
                with T.Then():
                    first, count = self.field(part, PartField.BEGIN), self.field(part, PartField.SIZE)
                    text.append(buffers["letters"], first, count, case, joined, used)
                with T.Else():
                    own = T.bind(kind == PART_KINDS.index("own"))
                    first, count = self.text(T.Select(own, column, part), row)
                    first, count = T.Select(own, begin, first), T.Select(own, size, count)
                    text.append(buffers["bytes"], in_register(first), in_register(count), case, joined, used)
        T.buffer_store(out, self.field(column, Field.DEFAULT), [0])
        with when(used[0] <= longest):
            self._word(column, joined, T.int32(0), in_register(used[0]), out)

    def _word(self, column: Expr, letters: Any, begin: Expr, size: Expr, out: Any) -> None:
        """The place in its vocabulary of what stands in `letters`."""
        print_ = T.alloc_buffer((1,), "uint64", scope="global")
        fingerprint(letters, begin, size, print_)

        def same(entry: Expr) -> Expr:
            spans, words = self.work.buffers["spans"], self.work.buffers["letters"]
            first = in_register(spans[entry])
            equal = T.alloc_buffer((1,), "int32", scope="global")
            T.buffer_store(equal, T.cast(spans[entry + 1] - first == size, "int32"), [0])
            with when(equal[0] == 1), T.serial(0, size) as i:
                T.buffer_store(
                    equal, T.bitwise_and(equal[0], T.cast(letters[begin + i] == words[first + i], "int32")), [0]
                )
            return equal[0] == 1

        self._known(column, print_[0], T.reinterpret("int64", print_[0]), same, out)

    def _bucket(self, column: Expr, print_: Expr, out: Any) -> None:
        buckets, reciprocal = (self.field(column, f, "uint64") for f in (Field.SIZE, Field.RECIPROCAL))
        T.buffer_store(out, T.cast(remainder(print_, buckets, reciprocal), "int32"), [0])

    def _known(self, column: Expr, print_: Expr, key: Expr, same: Callable[[Expr], Expr], out: Any) -> None:
        """A key's place in its vocabulary, else a bucket behind it, else the default."""
        slots, keys = self.work.buffers["slots"], self.work.buffers["keys"]
        first, mask = self.field(column, Field.FIRST), self.field(column, Field.SIZE) - 1
        first_key, oov = self.field(column, Field.KEYS), self.field(column, Field.OOV)
        probe = T.alloc_buffer((2,), "int32", scope="global")  # the slot; whether to go on
        print_ = in_register(print_)
        T.buffer_store(
            probe, T.bitwise_and(T.cast(T.bitwise_and(print_, u64_constant(0x7FFFFFFF)), "int32"), mask), [0]
        )
        T.buffer_store(probe, T.int32(1), [1])
        with T.While(probe[1] == 1):
            place = in_register(slots[first + probe[0]])
            with T.If(place < 0):
                with T.Then():
                    T.buffer_store(probe, T.int32(0), [1])
                    with T.If(oov > 0):
                        with T.Then():
                            bucket = T.cast(T.floormod(print_, u64(oov)), "int32")
                            T.buffer_store(out, self.field(column, Field.KEY_COUNT) + bucket, [0])
                        with T.Else():
                            T.buffer_store(out, self.field(column, Field.DEFAULT), [0])
                with T.Else():
                    entry = in_register(first_key + place)
                    with when(keys[entry] == key), when(same(entry)):
                        T.buffer_store(out, place, [0])
                        T.buffer_store(probe, T.int32(0), [1])
                    T.buffer_store(probe, T.bitwise_and(probe[0] + 1, mask), [0])

    def guarded(self, guard: Expr, index: Expr, count: int) -> Expr:
        removes, low, high, value = (in_register(self.work.buffers["guards"][guard, place]) for place in range(4))
        instead = in_register(T.Select(removes == 1, T.int32(ABSENT), value))

        index = in_register(index)
        outside = T.Or(index < broadcast(low, count), index >= broadcast(high, count))
        return T.Select(T.And(outside, index != broadcast(T.int32(ABSENT), count)), broadcast(instead, count), index)

"""The code of a `TrainingPart`: bags of ids, ids in places, or numbers, from raw features where they lie.

Bags are written one after the other: a row has as many ids as its values lead to, in memory whose size is an upper
bound that the texts' separators give (RECom 4.1). The code starts no threads, so that it runs in forked processes; a
training job has a process for each core that it gives to its input. Nothing in it depends on the columns but their code
paths, so that many parts share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.features.feature_description import ColumnStep
from veltair.compiler.features.kernel.code_path import CodePath, Combination, ValueKind
from veltair.compiler.features.kernel.column_slots import SLOTS_PER_ROW
from veltair.compiler.features.kernel.column_task import ColumnTask
from veltair.compiler.features.kernel.index_emitter import IndexEmitter
from veltair.compiler.features.kernel.row_lookup import RowLookup
from veltair.compiler.features.kernel.row_sums import emit_numbers
from veltair.compiler.features.kernel.seen_indices import SeenIndices
from veltair.compiler.features.kernel.sequence_emitter import SequenceEmitter
from veltair.compiler.features.kernel.table_rows import TableRows
from veltair.compiler.features.text_code.word_arithmetic import in_register
from veltair.compiler.features.training.training_parts import TrainingForm, TrainingPart
from veltair.compiler.graph.layer_spec import Activation
from veltair.errors import InvariantError

TILE = 256  # rows whose values are in the cache while several columns read them
RAW = {"ints": "int64", "floats": "float32", "offsets": "int32", "bytes": "uint8"}  # operands that a call brings
OUTPUTS = {
    TrainingForm.BAG: {"ids": ("int64", 1), "ends": ("int64", 2)},
    TrainingForm.IDS: {"out": ("int64", 2)},
    TrainingForm.NUMBERS: {"out": ("float32", 2)},
}  # by form: operands that a call writes, with their types and dimensions


@dataclass(frozen=True, slots=True)
class KernelCode:
    """What the code of a part depends on: parts of equal code share a kernel.

    >>> KernelCode(TrainingForm.IDS, (), longest_key=0, permutes=False).form
    <TrainingForm.IDS: 'ids'>
    """

    form: TrainingForm
    paths: tuple[CodePath, ...]
    longest_key: int  # bytes of the longest key that joined texts are compared with; 0 where none are joined
    permutes: bool  # whether the CPU takes 16 numbers from 16 by index
    part_kinds: frozenset[str] = frozenset()  # what crosses are made of


def kernel_code(part: TrainingPart, isa: frozenset[str]) -> KernelCode:
    """The code that a part needs."""
    paths = tuple(dict.fromkeys(group.path for group in part.table.groups))
    joins = any(path.step is ColumnStep.PARTS or path.removes for path in paths)
    longest = part.table.vocabularies.longest if joins else 0
    return KernelCode(part.form, paths, longest, "avx512" in isa, part.table.part_kinds)


def constants_of(part: TrainingPart) -> dict[str, NDArray[Any]]:
    """The constants of a part's kernel by name, in the order of its operands."""
    runs: dict[CodePath, list[int]] = {}
    for group in part.table.groups:
        runs.setdefault(group.path, [group.first, 0])[1] += group.count
    # By code path: the first column, how many.
    return {"runs": np.array(list(runs.values()), np.int32), **part.table.constants()}


def build_training_kernel(code: KernelCode) -> Any:
    """The PrimFunc: raw operands (RAW), constants (`constants_of`), for bags "bases", then OUTPUTS.

    "offsets" holds batch + 1 of each text, one text after the other, all into "bytes". Of bags, "bases" says where the
    ids of each column begin in "ids", and "ends" (bags, batch + 1) gives the end of each row's ids behind the base; its
    first number is 0 when the kernel is called.
    """
    extents = iter(range(-2, -100, -1))  # each a variable of its own; -1 is the batch

    def vector(name: str, dtype: str) -> Activation:
        return Activation(name, dtype, (next(extents),))

    raw = [vector(name, dtype) for name, dtype in RAW.items()]
    constants = [
        Activation("runs", "int32", (len(code.paths), 2)),
        Activation("columns", "int64", (next(extents), SLOTS_PER_ROW)),
        Activation("guards", "int32", (next(extents), 4)),
        vector("edges", "float32"),
        vector("slots", "int32"),
        vector("keys", "int64"),
        vector("spans", "int32"),
        vector("letters", "uint8"),
        vector("powers", "float64"),
        vector("tables", "float32"),
    ]
    bases = [vector("bases", "int64")] if code.form is TrainingForm.BAG else []
    outputs = [
        Activation(name, dtype, (next(extents),) if dims == 1 else (-1, next(extents)))
        for name, (dtype, dims) in OUTPUTS[code.form].items()
    ]
    if code.form is TrainingForm.BAG:
        outputs[1] = Activation("ends", "int64", (next(extents), next(extents)))
    operands = [*raw, *constants, *bases, *outputs]
    names = [operand.name for operand in operands]

    def body(*buffers: Any) -> None:
        _emit_tiles(code, dict(zip(names, buffers, strict=True)))

    return build_prim_func(operands, body, unaligned=raw)


def _emit_tiles(code: KernelCode, buffers: dict[str, Any]) -> None:
    bags = code.form is TrainingForm.BAG
    batch = in_register(buffers["ends"].shape[1] - 1) if bags else buffers["out"].shape[0]
    with T.serial(0, T.ceildiv(batch, TILE)) as tile:
        start = T.bind(tile * TILE)
        task = ColumnTask(
            buffers=buffers,
            first_column=T.int32(0),
            columns=T.int32(1),
            start=start,
            rows=T.bind(T.min(TILE, batch - start)),
            batch=batch,
            most_rows=TILE,
            most_columns=1,
            prefetches=False,
            longest_key=code.longest_key,
            widest=1,
            part_kinds=code.part_kinds,
            permutes=code.permutes,
        )
        emitter = _TrainingEmitter(task)
        emit = {TrainingForm.BAG: emitter.emit_bag, TrainingForm.IDS: emitter.emit_ids}.get(
            code.form, emitter.emit_numbers
        )
        for number, path in enumerate(code.paths):
            emitter.read_texts(path)
            with T.serial(0, buffers["runs"][number, 1]) as place:
                emit(in_register(buffers["runs"][number, 0] + place), path)


class _PlacedTexts(IndexEmitter):
    """Reads texts by Arrow's offsets, which need not begin at 0."""

    def text(self, column: Expr, row: Expr, value: Expr | int = 0) -> tuple[Expr, Expr]:
        """Begin and size of one of a row's texts in "bytes"; empty where offsets fall or pass the end."""
        offsets, room = self.task.buffers["offsets"], self.task.buffers["bytes"].shape[0]
        # A feature of several texts a row is alone in its part, so that its offsets begin the operand.
        place = row * T.max(self.slot(column, "values_per_row"), 1) + value  # a part has no width
        at = in_register(self.slot(column, "source_start") * (self.task.batch + 1) + place)
        begin, end = in_register(offsets[at]), in_register(offsets[at + 1])
        first, last, most = (T.cast(value, "uint32") for value in (begin, end, room))
        right = T.bind(T.And(first <= last, last <= most))
        return in_register(T.Select(right, begin, T.int32(0))), in_register(T.Select(right, end - begin, T.int32(0)))


class _BoundedSequences(SequenceEmitter):
    """Sequences of ids of rows: an index that is no row of the column's table is none."""

    def store_id(self, column: Expr, row: Expr, place: Expr, index: Expr) -> None:
        rows = self._emitter.slot(column, "table_rows", "uint32")
        index = in_register(index)
        super().store_id(column, row, place, T.Select(T.cast(index, "uint32") < rows, index, T.int32(-1)))


class _TrainingEmitter:
    """Emits the columns of a tile. To be made inside the loop over tiles. ::

    emitter = _TrainingEmitter(task)
    emitter.emit_bag(column, path)
    """

    def __init__(self, task: ColumnTask) -> None:
        self._task, self._indices = task, _PlacedTexts(task)
        table = TableRows(self._indices)
        self._lookup = RowLookup(self._indices, table)
        self._table = table

    def read_texts(self, path: CodePath) -> None:
        self._indices.read_texts(path)

    def emit_numbers(self, column: Expr, path: CodePath) -> None:
        emit_numbers(self._indices, column, path.kind)

    def emit_ids(self, column: Expr, path: CodePath) -> None:
        sequences = _BoundedSequences(self._indices, self._table)
        if path.step in (ColumnStep.LENGTH, ColumnStep.MASK):
            sequences.emit_counts(column, path)
        elif path.step is ColumnStep.BOUNDARIES and path.kind is not ValueKind.FLOATS:
            self._lookup.emit_indices(column, T.int32(0), path)
            base = self._lookup.first_index(T.int32(0))
            with T.serial(0, self._task.rows) as r:
                row = in_register(self._task.start + r)
                sequences.store_id(column, row, T.int32(0), self._lookup.indices[base + r])
        elif path.combination is Combination.IDS:
            sequences.emit_ids(column, path)
        else:
            raise InvariantError(f"{path}: a column of ids with rows of a table")

    def emit_bag(self, column: Expr, path: CodePath) -> None:
        """Appends the ids of a column's rows to those of the rows before."""
        task, values = self._task, self._indices
        ids, ends = task.buffers["ids"], task.buffers["ends"]
        bag, rows = values.slot(column, "output_start"), values.slot(column, "table_rows", "uint32")
        base, stand_in = in_register(task.buffers["bases"][bag]), values.slot(column, "pad_id")
        used = T.alloc_buffer((1,), "int64", scope="global")  # ids behind the base
        index = T.alloc_buffer((1,), "int32", scope="global")

        def append(value: Expr) -> None:
            T.buffer_store(ids, T.cast(value, "int64"), [base + used[0]])
            T.buffer_store(used, used[0] + T.int64(1), [0])

        def keep(value: Expr) -> None:
            value = in_register(value)
            inside = T.bind(T.cast(value, "uint32") < rows)
            with when(seen.is_new(value, inside) if path.distinct else inside):
                append(value)

        T.buffer_store(used, ends[bag, task.start], [0])
        buckets = path.step is ColumnStep.BOUNDARIES and path.kind is not ValueKind.FLOATS
        seen = SeenIndices(path.distinct)
        if buckets:
            self._lookup.emit_indices(column, T.int32(0), path)
        first = self._lookup.first_index(T.int32(0))
        with T.serial(0, task.rows) as r:
            row = in_register(task.start + r)
            seen.clear()
            if buckets:
                keep(self._lookup.indices[first + r])
            else:
                with values.for_each_value(column, path.kind, path.step, row, index):
                    keep(index[0])
            with when(T.And(used[0] == ends[bag, row], stand_in >= 0)):
                append(stand_in)
            T.buffer_store(ends, used[0], [bag, row + 1])

"""All columns of an input in one kernel, driven by a table of numbers: its code does not grow with the columns.

RECom 3.1 maps a column to a thread block. Here a task is a tile: some rows of the batch of some columns that share
their code. It computes the indices of the whole tile first, many rows at a time, then copies its rows of the tables
side by side. Computed tensors that stand beside the columns in what reads them are copied by tasks of their own
(`concatenated_layer`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.outlined import outlined
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.features.feature_description import ColumnInput, FeatureDescription
from veltair.compiler.features.feature_layout import FeatureLayout, buffer_of
from veltair.compiler.features.kernel.code_path import CodePath
from veltair.compiler.features.kernel.column_emitter import ColumnEmitter
from veltair.compiler.features.kernel.column_table import ColumnTable, build_column_table
from veltair.compiler.features.kernel.column_task import ColumnTask
from veltair.compiler.features.kernel.columns_parameters import ColumnsParameters
from veltair.compiler.features.table_store import TableStore
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.kernels.rows.concat_rows import copy_row

SPECIAL_WIDTHS = 4  # the most frequent widths of rows, which have code of their own
WIDEST_SPECIAL = 128
INDEX_BYTES = 4


def columns_layer(
    description: FeatureDescription,
    joined: ColumnInput,
    max_batch: int,
    store: TableStore | None = None,
    dtype: str = "float32",
) -> LayerSpec:
    """The layer that gives an input (B, width) of the model from the packed raw features that its columns read.

    Args:
        store: rows of all tables of the description; loaded where none is given.
        dtype: "int64" or "int32" for an input of ids.

    Raises ModelError for a table that cannot be read, and for texts that do not fit in the greatest batch.
    """
    layout, store = FeatureLayout.from_description(description), store or TableStore.load(description)
    table = build_column_table(description, joined, store)
    layout.check_room(max_batch, description.path)
    return LayerSpec(
        name=joined.name,
        op="columns",
        inputs=tuple(map(layout.activation, layout.buffers_read(description.features_read_by(joined.columns)))),
        outputs=(Activation(joined.name, dtype, (-1, table.width)),),
        weights={"tables": table.tables},
        flops=table.width,
        max_batch=max_batch,
        parameters=ColumnsParameters(table.digest, table, description, joined, store.tables, storage=table.storage),
    )


def concatenated_layer(
    columns: LayerSpec, before: Sequence[Activation], behind: Sequence[Activation], y: Activation
) -> LayerSpec:
    """A columns' layer that gives its numbers (B, width) between computed ones, float32 or bfloat16 (B, …).

    y: the whole, float32 or bfloat16.
    """
    parameters = columns.parameters_as(ColumnsParameters)
    copied = (*before, *behind)
    widths = [*(t.shape[1] for t in before), parameters.table.width, *(t.shape[1] for t in behind)]
    starts = list(accumulate(widths[:-1], initial=0))
    own = starts.pop(len(before))
    table = parameters.table.moved_by(own)
    changed = replace(parameters, plan=table.digest, table=table, places=(own, *starts), copied=copied)
    return replace(columns, inputs=(*columns.inputs, *copied), outputs=(y,), parameters=changed)


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The table of chunks that tasks take, and the code that it refers to by number."""

    table: NDArray[np.int32]  # (chunks, 4): code path, row width, first column, how many columns
    paths: list[CodePath]  # behind their numbers are those of the copied tensors, a chunk each
    widths: list[int]  # that have code; 0 is any other one, -1 in the table stands for no rows to copy


class ColumnsSpace:
    """Design space of `columns_layer` and `concatenated_layer`.

    A point: rows and columns of a tile; `along` "rows", where each core takes tiles of rows, or "columns", where it
    takes columns, which share no table with those of others; `ahead` 1 to prefetch rows of large tables.

    >>> spec = LayerSpec("x", "columns", (), (), {}, flops=0, max_batch=64)
    >>> ColumnsSpace().points(spec, frozenset({"avx2"}))[0]
    {'rows': 64, 'columns': 32, 'along': 'columns', 'ahead': 0}
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        rows = [r for r in (256, 64, 32) if r == 32 or r < 2 * spec.max_batch]
        return [
            {"rows": r, "columns": c, "along": along, "ahead": ahead}
            for ahead in (0, 1)
            for along in ("columns", "rows")
            for r in rows
            for c in (32, 128)
        ]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        parameters = spec.parameters_as(ColumnsParameters)
        table = parameters.table
        rows, columns = int(point["rows"]), int(point["columns"])
        read = len(spec.inputs) - len(parameters.copied)  # packed buffers; behind them is what is copied
        chunks = _deal_chunks(table, columns, len(parameters.copied))
        weights = {"chunks": chunks.table, **table.constants()}
        names = [*(buffer_of(tensor.name) for tensor in spec.inputs[:read]), *weights, "out"]
        widest = int(table.rows["row_width"].max())

        def body(*operands: Any) -> None:
            pieces = operands[read : len(spec.inputs)]
            buffers = dict(zip(names, (*operands[:read], *operands[len(spec.inputs) :]), strict=True))
            batch = buffers["out"].shape[0]
            tiles, count = T.ceildiv(batch, rows), len(chunks.table)
            with T.parallel(0, tiles * count) as task:
                by_rows = point["along"] == "rows"
                tile = T.bind(T.floordiv(task, count) if by_rows else T.floormod(task, tiles))
                chunk = T.bind(T.floormod(task, count) if by_rows else T.floordiv(task, tiles))
                path_number, dim, first, many = (T.bind(buffers["chunks"][chunk, place]) for place in range(4))
                start = T.bind(tile * rows)
                work = ColumnTask(
                    buffers=buffers,
                    first_column=first,
                    columns=many,
                    start=start,
                    rows=T.bind(T.min(rows, batch - start)),
                    batch=batch,
                    most_rows=rows,
                    most_columns=columns,
                    prefetches=bool(point["ahead"]),
                    longest_key=table.vocabularies.longest,
                    widest=widest,
                    part_kinds=table.part_kinds,
                    permutes="avx512" in features,
                )
                code = ColumnEmitter(work)
                for number, path in enumerate(chunks.paths):
                    with when(path_number == number), outlined():
                        code.emit(path)
                for number, width in enumerate(chunks.widths):
                    with when(dim == number), outlined():
                        code.emit_copies(width)
                places = zip(pieces, parameters.places[1:], strict=True)
                for number, (piece, place) in enumerate(places, len(chunks.paths)):
                    with when(path_number == number), T.serial(0, work.rows) as row:
                        copy_row(piece, buffers["out"], start + row, place, piece.shape[1])

        function = build_prim_func([*spec.inputs, *weights.values(), *spec.outputs], body)
        block = rows * columns * (INDEX_BYTES + 3 * 4 * widest)
        tasks = -(-spec.max_batch // rows) * len(chunks.table)
        return Kernel(function, tuple(weights.values()), block, tasks)


def _deal_chunks(table: ColumnTable, columns: int, copied: int) -> _Chunks:
    """Chunks of at most `columns` columns, and one for each of `copied` tensors.

    They are dealt so that any stretch of them holds every kind: cores that take neighbouring chunks finish together.
    """
    looked_up = [group for group in table.groups if group.path.copies_rows]
    often: Counter[int] = Counter()
    for group in looked_up:
        often[group.dim] += group.count
    widths = [dim for dim, _ in often.most_common(SPECIAL_WIDTHS) if dim <= WIDEST_SPECIAL]
    widths += [0] if any(group.dim not in widths for group in looked_up) else []
    paths = list(dict.fromkeys(group.path for group in table.groups))
    chunks = [(0.5, len(paths) + piece, -1, 0, 0) for piece in range(copied)]
    for group in table.groups:
        width = widths.index(group.dim if group.dim in widths else 0) if group.path.copies_rows else -1
        pieces = -(-group.count // columns)
        for piece in range(pieces):
            first = group.first + piece * columns
            many = min(columns, group.first + group.count - first)
            chunks.append(((piece + 0.5) / pieces, paths.index(group.path), width, first, many))
    return _Chunks(np.array([entry[1:] for entry in sorted(chunks)], np.int32), paths, widths)

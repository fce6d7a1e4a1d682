"""All columns of an input in one kernel, driven by tables of numbers: its code does not grow with the columns.

RECom 3.1 maps a column to a thread block; here a task is a tile of rows of a chunk of columns that share their code.
First the indices of the whole tile, many rows at a time, then its rows of the tables, copied side by side. Computed
tensors that stand beside the columns in what reads them are copied there by tasks of their own (`beside`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.features.feature_description import ColumnInput, FeatureDescription
from veltair.compiler.features.feature_layout import FeatureLayout, buffer_of
from veltair.compiler.features.kernel.column_emitter import ColumnEmitter
from veltair.compiler.features.kernel.column_table import ColumnTable, Field, build_column_table
from veltair.compiler.features.kernel.columns_parameters import ColumnsParameters
from veltair.compiler.features.kernel.index_emitter import ColumnTask
from veltair.compiler.features.kernel.text import powers_of_ten
from veltair.compiler.features.table_store import TableStore
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.rows.concat_rows import copy_row
from veltair.errors import ModelError
from veltair.profiles.artifact.strings import MOST_BYTES

SPECIAL = 4  # widths of rows that have code of their own: the most frequent ones
WIDEST = 128  # of those
INDEX_BYTES = 4


def columns_layer(
    description: FeatureDescription,
    joined: ColumnInput,
    max_batch: int,
    store: TableStore | None = None,
    dtype: str = "float32",
) -> LayerSpec:
    """The layer that gives an input (B, width) of the model from the banks of raw features that its columns read.

    store: of all the description's tables; made where none is given. dtype: int64 or int32 of ids. Raises ModelError.
    """
    place, store = FeatureLayout.from_description(description), store or TableStore.load(description)
    found = build_column_table(description, joined, store)
    room = max_batch * place.widths.get("bytes", 0)
    if room > MOST_BYTES:
        raise ModelError(
            f"{description.path}: max_bytes: room for {room} bytes of text in a batch of {max_batch}; expected at most "
            f"{MOST_BYTES}: lower max_bytes or the greatest batch"
        )
    inputs = tuple(map(place.activation, place.buffers_read(description.reads(joined.columns))))
    parameters = ColumnsParameters(found.digest, found, description, joined, store.tables, storage=found.storage)
    return LayerSpec(
        joined.name, "columns", inputs, (Activation(joined.name, dtype, (-1, found.width)),), {},
        {"tables": found.tables}, found.width, max_batch, parameters,
    )  # fmt: skip


def concatenated_layer(
    columns: LayerSpec, before: Sequence[Activation], behind: Sequence[Activation], y: Activation
) -> LayerSpec:
    """A columns' layer that gives its numbers (B, width) with computed ones, float32 or bfloat16 (B, …), on both sides.

    y: the whole, float32 or bfloat16.
    """
    parameters = columns.parameters_as(ColumnsParameters)
    found = parameters.table
    starts = np.cumsum(
        [0, *(tensor.shape[1] for tensor in before), found.width, *(t.shape[1] for t in behind)]
    ).tolist()
    own, shifted = starts.pop(len(before)), found.columns.copy()
    shifted[:, Field.OUT] += own
    found, pieces = replace(found, columns=shifted), (*before, *behind)
    changed = replace(parameters, plan=found.digest, table=found, places=(own, *starts[:-1]), copied=pieces)
    return replace(columns, inputs=(*columns.inputs, *pieces), outputs=(y,), parameters=changed)


class ColumnsSpace:
    """See `layer` and `beside`.

    A point: rows of a tile, columns of a chunk, what neighbouring tasks share, rows fetched or not.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        """`along` "rows": the cores take tiles of rows each; "columns": columns each, which share no table."""
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
        found = parameters.table
        rows, columns = int(point["rows"]), int(point["columns"])
        read = len(spec.inputs) - len(parameters.copied)  # banks; behind them what is copied
        chunks, roads, dims = _chunks(found, columns, len(spec.inputs) - read)
        widest = int(found.columns[:, Field.DIM].max())
        words = found.vocabularies
        weights: dict[str, NDArray[Any]] = {
            "chunks": chunks, "columns": found.columns, "guards": found.guards, "edges": found.edges,
            "slots": words.slots, "keys": words.keys, "spans": words.spans, "letters": words.letters,
            "powers": powers_of_ten(), "tables": found.tables,
        }  # fmt: skip
        kinds = [buffer_of(tensor.name) for tensor in spec.inputs[:read]]

        def body(*operands: Any) -> None:
            names = [*kinds, *weights, "out"]
            pieces = operands[read : len(spec.inputs)]
            buffers = dict(zip(names, (*operands[:read], *operands[len(spec.inputs) :]), strict=True))
            batch = buffers["out"].shape[0]
            tiles, count = T.ceildiv(batch, rows), len(chunks)
            with T.parallel(0, tiles * count) as task:
                by_rows = point["along"] == "rows"
                tile = T.bind(T.floordiv(task, count) if by_rows else T.floormod(task, tiles))
                chunk = T.bind(T.floormod(task, count) if by_rows else T.floordiv(task, tiles))
                table = buffers["chunks"]
                road, dim, first, many = (T.bind(table[chunk, place]) for place in range(4))
                start = T.bind(tile * rows)
                work = ColumnTask(
                    buffers, first, many, start, T.bind(T.min(rows, batch - start)), batch,
                    rows, columns, bool(point["ahead"]), found.vocabularies.longest, widest, "avx512" in features,
                )  # fmt: skip
                code = ColumnEmitter(work)
                for number, name in enumerate(roads):
                    with when(road == number):
                        code.run(name)
                for number, width in enumerate(dims):
                    with when(dim == number):
                        code.rows(width)
                for number, (piece, place) in enumerate(zip(pieces, parameters.places[1:], strict=True), len(roads)):
                    with when(road == number), T.serial(0, work.count) as row:
                        copy_row(piece, buffers["out"], start + row, place, piece.shape[1])

        function = build_prim_func([*spec.inputs, *weights.values(), *spec.outputs], body)
        block = rows * columns * (INDEX_BYTES + 3 * 4 * widest)
        tasks = -(-spec.max_batch // rows) * len(chunks)
        return Kernel(function, tuple(weights.values()), block, tasks)


def _chunks(found: ColumnTable, columns: int, copied: int) -> tuple[NDArray[np.int32], list[str], list[int]]:
    """(chunks, 4): road, width, first column, how many; dealt so that any stretch of them holds every kind. Behind the
    roads are the numbers of `copied` tensors, a chunk each.

    Also the roads and the widths that have code, by their numbers; width 0 is any other one, -1 of what copies no rows.
    """
    looked_up = [group for group in found.groups if group.one_row]
    often: Counter[int] = Counter()
    for group in looked_up:
        often[group.dim] += group.count
    dims = [dim for dim, _ in often.most_common(SPECIAL) if dim <= WIDEST]
    dims += [0] if any(group.dim not in dims for group in looked_up) else []
    roads = list(dict.fromkeys(group.road for group in found.groups))
    chunks = [(0.5, len(roads) + piece, -1, 0, 0) for piece in range(copied)]
    for group in found.groups:
        width = dims.index(group.dim if group.dim in dims else 0) if group.one_row else -1
        pieces = -(-group.count // columns)
        for piece in range(pieces):
            first = group.first + piece * columns
            many = min(columns, group.first + group.count - first)
            chunks.append(((piece + 0.5) / pieces, roads.index(group.road), width, first, many))
    return np.array([entry[1:] for entry in sorted(chunks)], np.int32), roads, dims

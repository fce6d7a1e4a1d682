"""Embeddings of token sequences: rows of several tables and of positions added up, then normalised.

Negative ids count from the end. An id that is no row of its table reads row 0, so nothing outside of one is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.sequence import LayerNormParameters
from veltair.compiler.kernels.rows.layer_norm import RowNormalisation


class TokenEmbedding:
    """inputs: ids (batch, tokens) for each table; weights: table0, table1, … (rows, N), positions (tokens, N), scale
    and shift (N); output (batch * tokens, N), fp32 or bfloat16. Parameters: `LayerNormParameters`.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> ids, y = Activation("ids", "int64", (-1, 128)), Activation("y", "float32", (-128, 768))
    >>> TokenEmbedding().points(LayerSpec("embed", "embedding", (ids,), (y,), {}, flops=0), frozenset({"avx2"}))[0]
    {'rows': 32}
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{"rows": rows} for rows in (32, 8, 96)]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        y, rows_of_task = spec.outputs[0], int(point["rows"])
        tokens, width = spec.inputs[0].shape[1], y.shape[1]
        tables = [spec.weights[f"table{i}"] for i in range(len(spec.inputs))]
        scale, shift = (pad_axis(spec.weights[k], 0, LANES) for k in ("scale", "shift"))
        epsilon = spec.parameters_as(LayerNormParameters).epsilon

        def body(*buffers: Any) -> None:
            ids, table_buffers = buffers[: len(tables)], buffers[len(tables) : 2 * len(tables)]
            positions, S, B, Y = buffers[-4:]
            rows = Y.shape[0]
            with T.parallel(0, T.ceildiv(rows, rows_of_task)) as task:
                code = RowNormalisation(S, B, Y, width, epsilon)
                total = T.alloc_buffer((1, -(-width // LANES) * LANES), "float32", scope="global")
                with T.serial(0, T.min(rows_of_task, rows - task * rows_of_task)) as r:
                    row = T.bind(task * rows_of_task + r)
                    image, token = T.bind(row // tokens), T.bind(row % tokens)
                    extents = [table.shape[0] for table in tables]
                    picked = [_row_of(n, image, token, e) for n, e in zip(ids, extents, strict=True)]
                    with T.serial(0, -(-width // LANES)) as vector:
                        column = T.bind(vector * LANES)
                        terms = [(positions, token), *zip(table_buffers, picked, strict=True)]
                        vector_store(total, _sum_rows(terms, column), 0, column)
                    code.emit(total, 0, row)

        weights = (*tables, spec.weights["positions"], scale, shift)
        function = build_prim_func([*spec.inputs, *weights, y], body)
        return Kernel(function, weights, rows_of_task * width * 4 * (len(tables) + 2), 1)


def _row_of(ids: Any, image: Expr, token: Expr, rows: int) -> Expr:
    """The row of a table that an id selects, a negative one from the end; `rows` is the table's length."""
    given = T.bind(ids[image, token])
    number = T.bind(T.Select(given < 0, given + T.cast(rows, ids.dtype), given))
    inside = T.And(number >= 0, number < rows)
    return T.bind(T.cast(T.Select(inside, number, T.cast(0, ids.dtype)), "int32"))


def _sum_rows(terms: Sequence[tuple[Any, Expr]], column: Expr) -> Expr:
    """The sum of 16 columns of (buffer, row) pairs."""
    (first, row), *others = terms
    value = vector_load(first, row, column)
    for buffer, row in others:
        value = value + vector_load(buffer, row, column)
    return value

"""Embeddings of token sequences: rows of several tables and of positions added up, then normalised.

An id that no row has reads row 0: nothing outside of a table is ever read.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.memory import vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES
from veltair.compiler.kernels.codegen.weight_packing import pad_axis
from veltair.compiler.kernels.rows.layer_norm import SUMS, normalise


class Embedding:
    """inputs: ids (batch, tokens) for each table; weights: table<i> (rows, N), positions (tokens, N), scale, shift (N);
    output (batch * tokens, N), fp32 or bfloat16."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{"rows": rows} for rows in (32, 8, 96)]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        y, each = spec.outputs[0], int(point["rows"])
        tokens, width = spec.inputs[0].shape[1], y.shape[1]
        tables = [spec.weights[f"table{i}"] for i in range(len(spec.inputs))]
        positions = spec.weights["positions"]
        scale, shift = (pad_axis(spec.weights[k], 0, LANES) for k in ("scale", "shift"))

        def body(*operands: Any) -> None:
            ids, found = operands[: len(tables)], operands[len(tables) : 2 * len(tables)]
            P, S, B, Y = operands[-4:]
            rows = Y.shape[0]
            with T.parallel(0, T.ceildiv(rows, each)) as task:
                sums = T.alloc_buffer((SUMS,), "float32x16", scope="local")
                total = T.alloc_buffer((1, -(-width // LANES) * LANES), "float32", scope="global")
                with T.serial(0, T.min(each, rows - task * each)) as r:
                    row = T.bind(task * each + r)
                    image, token = T.bind(row // tokens), T.bind(row % tokens)
                    places = []
                    for table, numbers in zip(tables, ids, strict=True):
                        place = T.bind(numbers[image, token])
                        inside = T.And(place >= 0, place < table.shape[0])
                        places.append(T.bind(T.cast(T.Select(inside, place, T.cast(0, numbers.dtype)), "int32")))
                    with T.serial(0, -(-width // LANES)) as vector:
                        column = T.bind(vector * LANES)
                        value = vector_load(P, token, column)
                        for table, place in zip(found, places, strict=True):
                            value = value + vector_load(table, place, column)
                        vector_store(total, value, 0, column)
                    normalise(total, 0, S, B, Y, row, width, spec.attributes["epsilon"], sums)

        function = build_prim_func([*spec.inputs, *tables, positions, scale, shift, y], body)
        weights = (*tables, positions, scale, shift)
        return Kernel(function, weights, each * width * 4 * (len(tables) + 2), 1)

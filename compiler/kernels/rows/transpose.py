"""Matrices turned round, as between the tokens of a transformer and the channels of a feature map."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import divide_in_registers, index_in_register, vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.transpose import transpose_16x16
from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point

ENOUGH_TASKS = 8  # of one matrix, for the cores to share
CACHE_LINE = 64  # bytes


class Transpose:
    """inputs: x (B, M, N); output (B, N, M), float32 or 8 bits. M and N are at least 16, B may depend on the batch.
    Or x (B, M, N, C); output (B, N, M, C), with C at least 16.

    Tiles of 16 x 16 are turned in registers, so that a cache line is read and written whole; rows of C are copied. The
    last tiles and vectors overlap those before them.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> x, y = Activation("x", "float32", (-1, 196, 64)), Activation("y", "float32", (-1, 64, 196))
    >>> Transpose().points(LayerSpec("turn", "transpose", (x,), (y,), {}, flops=0), frozenset({"avx2"}))
    [{'tiles': 1}, {'tiles': 2}, {'tiles': 4}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        _, rows, columns, *row = spec.inputs[0].shape
        tiles = columns if row else -(-rows // LANES)
        sizes = [size for size in (4, 2, 1) if size == 1 or size <= tiles]
        shared = [size for size in sizes if tiles >= ENOUGH_TASKS * size]
        return [{"tiles": size} for size in dict.fromkeys((*shared, *reversed(sizes)))]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        (_, rows, columns, *row), tiles = x.shape, int(point["tiles"])
        if row:
            return _copied_rows(spec, tiles)
        tasks = -(-rows // (tiles * LANES))

        def body(X: Any, Y: Any) -> None:
            with T.parallel(0, X.shape[0] * tasks) as task:
                matrix, part = divide_in_registers(task, T.int32(tasks))
                with T.serial(0, -(-columns // LANES)) as across, T.serial(0, tiles) as down:
                    row = index_in_register(T.min((part * tiles + down) * LANES, rows - LANES))
                    column = index_in_register(T.min(across * LANES, columns - LANES))
                    taken = [T.bind(vector_load(X, matrix, row + i, column)) for i in range(LANES)]
                    for i, turned in enumerate(transpose_16x16(taken)):
                        vector_store(Y, turned, matrix, column + i, row)

        size = np.dtype(x.dtype).itemsize
        return Kernel(build_prim_func([x, y], body), (), 2 * size * tiles * LANES * columns, tasks)


def _copied_rows(spec: LayerSpec, columns: int) -> Kernel:
    """columns: of the matrices of rows, that a task turns."""
    x, y = spec.inputs[0], spec.outputs[0]
    _, rows, across, row = x.shape
    size, tasks = np.dtype(x.dtype).itemsize, -(-across // columns)
    width = min(CACHE_LINE // size, 1 << row.bit_length() - 1)

    def body(X: Any, Y: Any) -> None:
        with T.parallel(0, X.shape[0] * tasks) as task:
            matrix, part = divide_in_registers(task, T.int32(tasks))
            with T.grid(columns, rows) as (nth, m):
                n = index_in_register(T.min(part * columns + nth, across - 1))
                with T.serial(0, -(-row // width)) as vector:
                    at = index_in_register(T.min(vector * width, row - width))
                    vector_store(Y, vector_load(X, matrix, m, n, at, count=width), matrix, n, m, at, count=width)

    return Kernel(build_prim_func([x, y], body), (), 2 * size * columns * rows * row, tasks)

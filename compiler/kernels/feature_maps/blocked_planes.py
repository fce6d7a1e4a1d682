"""Planes of channel-blocked activations: indices inside their halos, sizes, means, and points for tasks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.graph.layer_spec import Activation, Point

MAX_MEAN_SUMS = 8  # side by side, since each sum waits for its last step


def row_points(height: int, rows: tuple[int, ...] = (4, 1, 16, 1024)) -> list[Point]:
    """A design space of one choice: how many of `height` rows a task takes.

    >>> row_points(7)
    [{'rows': 4}, {'rows': 1}, {'rows': 7}]
    """
    return [{"rows": r} for r in dict.fromkeys(min(height, r) for r in rows)]


@contextmanager
def row_tasks(X: Any, blocks: int, chunks: int, rows: int, height: int) -> Iterator[tuple[Expr, Expr, Expr]]:
    """Image, block and row of each step of all tasks."""
    with T.parallel(0, X.shape[0] * blocks * chunks) as task:
        image, block = T.bind(task // (blocks * chunks)), T.bind(task // chunks % blocks)
        first = T.bind(task % chunks * rows)
        with T.serial(0, T.min(rows, height - first)) as r:
            yield image, block, T.bind(first + r)


def blocked_index(
    tensor: Activation, image: Expr, block: Expr, row: Expr, column: Expr, lane: Expr
) -> tuple[Expr, ...]:
    """The index of an element of a blocked tensor; row and column count inside the halo."""
    return image, block, row + tensor.halo.top, column + tensor.halo.left, lane


def row_bytes(tensor: Activation) -> int:
    """Bytes of one row of one channel block, without its halo."""
    return tensor.shape[3] * tensor.block * np.dtype(tensor.dtype).itemsize


def emit_plane_means(x: Activation, X: Any, image: Expr, block: Expr, means: Any) -> None:
    """Store the mean of each channel's plane, for one block of channels, to `means` (b)."""
    height, width = x.shape[2:]
    starts = range(0, x.block, LANES)
    count = min(width, MAX_MEAN_SUMS)
    sums = T.alloc_buffer((count * len(starts),), "float32x16", scope="local")
    for i in range(count * len(starts)):
        T.buffer_store(sums, broadcast(0.0), [i])

    def add(pixels: int, row: Expr, column: Expr) -> None:
        for p in range(pixels):
            for half, start in enumerate(starts):
                i = half * count + p
                value = vector_load(X, *blocked_index(x, image, block, row, column + p, start))
                T.buffer_store(sums, sums[i] + value, [i])

    with T.serial(0, height) as row:
        with T.serial(0, width // count) as t:
            add(count, row, t * count)
        if width % count:
            add(width % count, row, width - width % count)
    for half, start in enumerate(starts):
        total = sums[half * count]
        for p in range(1, count):
            total = total + sums[half * count + p]
        vector_store(means, total * broadcast(1.0 / (height * width)), start)

"""Products of many small matrices on bfloat16 in blocks: both sides computed, fp32 or bfloat16 in memory.

A task takes some products, or a share of one: `panels` panels of columns of its right side, packed in pairs of its
reduction, and a share of its rows, of which as many as a register block holds are packed at a time (or read as they
lie, where they are bfloat16 and whole tile rows). What lies turned is turned in registers. Rows that do not fill the
last tile move up and are made twice; what is packed behind the end of the reduction is zero on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.activation import apply_activation
from veltair.compiler.kernels.codegen.bf16 import array_to_bf16
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import allocate_scratch, masked_store, vector_load
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import Expr, broadcast
from veltair.compiler.kernels.codegen.weight_packing import pad_axis
from veltair.compiler.kernels.matmul.batched_operands import contiguous, place, rows_of, sides
from veltair.compiler.kernels.matmul.bf16_blocks import UNITS, Left, Product, Right, unit_of
from veltair.compiler.kernels.matmul.matmul_amx import DEPTH, TILE
from veltair.compiler.kernels.matmul.pair_packing import pair_rows, take_rows, turn_columns, turn_rows

PACKED_BYTES = 256 << 10  # of a task's share of the right side, at most: it stays in L2
SMALL = 1 << 16  # products of numbers of one product of matrices, up to which a task takes several


def points(spec: LayerSpec, features: frozenset[str]) -> list[Point]:
    """None where neither the rows nor the columns of a side lie contiguous."""
    left, right = sides(spec)
    if "neither" in (contiguous(spec.attributes["left_order"]), contiguous(spec.attributes["right_order"])):
        return []
    depth, width, height = left[-1], right[-1], rows_of(spec)
    steps, columns = -(-depth // DEPTH), -(-width // (_tiles(width) * TILE))
    pairs = -(-height // (_tiles(height) * TILE))
    found: list[Point] = []
    sizes = [c for c in (1, 2, 4, 8, 16) if c < 2 * columns and (c == 1 or c * steps * 2048 <= PACKED_BYTES)]
    for panels in reversed(sizes):
        for chunks in (c for c in (1, 2, 4) if c <= pairs):
            for together in (8, 1, 32) if depth * width * height <= SMALL and panels >= columns else (1,):
                found.append({"unit": unit_of(features), "panels": panels, "chunks": chunks, "together": together})
    return found


def build(spec: LayerSpec, point: Point) -> Kernel:
    y, attributes = spec.outputs[0], spec.attributes
    panels, chunks, together = int(point["panels"]), int(point["chunks"]), int(point["together"])
    depth, width = sides(spec)[0][-1], y.shape[-1]
    tall, wide, steps = _tiles(rows_of(spec)), _tiles(width), -(-depth // DEPTH)
    panel = wide * TILE
    columns = -(-width // panel)
    groups = -(-columns // panels)
    bias = pad_axis(spec.weights["bias"], 0, panel)
    constant = tuple(array_to_bf16(spec.weights[side]) for side in ("left", "right") if side in spec.weights)
    activation, scale = str(attributes["activation"]), float(attributes["scale"])
    left_order, right_order = attributes["left_order"], attributes["right_order"]

    def body(*buffers: Any) -> None:
        X, Z = buffers[:2] if "left" not in spec.weights else buffers[1::-1]
        bias_, Y = buffers[-2:]
        left, right = place(X, left_order), place(Z, right_order)
        pitch = _pitch(X, left_order) if depth % DEPTH == 0 else 0
        *outer, total, _ = Y.shape
        products: Expr = 1
        for extent in outer:
            products = products * extent
        height, least = T.min(total, TILE), abs(y.shape[-2])
        pairs = T.ceildiv(total, tall * TILE)
        each = T.ceildiv(pairs, chunks)

        def one(
            image: Sequence[Expr], group: Expr, chunk: Expr, packed: Any, rows: Any, sums: Any, product: Product
        ) -> None:
            count = T.bind(T.min(panels, columns - group * panels))
            pack = pair_rows if contiguous(right_order) == "rows" else turn_columns
            with T.grid(count, wide) as (p, tile):
                first = T.bind(((group * panels + p) * wide + tile) * TILE)
                with when(first < width):
                    pack(Z, partial(right, image), first, width, depth, packed, p, tile)
            with T.serial(0, T.max(T.min(each, pairs - chunk * each), 0)) as pair:
                start = (chunk * each + pair) * (tall * TILE)
                first_rows = [T.bind(T.max(T.min(start + half * TILE, total - TILE), 0)) for half in range(tall)]
                for half, row in enumerate([] if pitch else first_rows):
                    if contiguous(left_order) == "rows":
                        take_rows(X, partial(left, image), row, height, depth, rows, half * TILE)
                    else:
                        turn_rows(X, partial(left, image), row, height, least, depth, rows, half * TILE)
                if pitch:
                    taken = Left(X, lambda half, r, k: left(image, first_rows[half] + r, k), pitch)
                else:
                    taken = Left(rows, lambda half, r, k: (half * TILE + r, k), steps * DEPTH * 2)
                with T.serial(0, count) as p:
                    product(sums, 0, taken, Right(packed, lambda tile, step: (p, step, tile)), steps, tall, wide)
                    for half, row in enumerate(first_rows):
                        with T.serial(0, height) as r:
                            for tile in range(wide):
                                column = T.bind((group * panels + p) * panel + tile * TILE)
                                with when(column < width):
                                    value = vector_load(sums, half * TILE + r, tile * TILE)
                                    value = value * broadcast(scale) + vector_load(bias_, column)
                                    value = T.bind(apply_activation(value, activation))
                                    masked_store(Y, value, *image, row + r, column, width=width)

        with T.parallel(0, T.ceildiv(products, together) * (groups * chunks)) as task:
            packed = allocate_scratch((panels, steps, wide, TILE, TILE), "uint32")
            rows = None if pitch else allocate_scratch((tall * TILE, steps * DEPTH), "uint16")
            sums = allocate_scratch((tall * TILE, panel), "float32")
            chunk, group = T.bind(task % chunks), T.bind(task // chunks % groups)
            begin = T.bind(task // (chunks * groups) * together)
            with (
                UNITS[str(point["unit"])](T.bind(height)) as product,
                T.serial(0, T.min(together, products - begin)) as nth,
            ):
                image: list[Expr] = []
                rest = T.bind(begin + nth)
                for extent in reversed(outer):
                    image.insert(0, T.bind(rest % extent))
                    rest = T.bind(rest // extent)
                one(image, group, chunk, packed, rows, sums, product)

    function = build_prim_func([*spec.inputs, *constant, bias, y], body)
    taken = -(-rows_of(spec) // chunks)
    block_size = panels * steps * wide * 1024 + taken * (depth * 2 + panels * panel * 4)
    count = int(np.prod(np.abs(y.shape[:-2]), dtype=np.int64))
    return Kernel(function, (*constant, bias), block_size, -(-count // together) * groups * chunks * tall * wide)


def _tiles(extent: int) -> int:
    """Of a register block in one direction."""
    return 2 if extent > TILE else 1


def _pitch(buffer: Any, order: Sequence[int]) -> int:
    """Bytes between the rows of a left side that is read as it lies; 0 where it must be packed."""
    behind = buffer.shape[order[-2] + 1 :]
    if (
        buffer.dtype != "uint16"
        or contiguous(order) != "rows"
        or not all(isinstance(d, (int, T.IntImm)) for d in behind)
    ):
        return 0
    return 2 * int(np.prod([int(d) for d in behind]))

"""Attention of all heads in one layer: scores, softmax and their product with V for a few rows at a time.

A task takes one head of one image and a share of its queries. The scores of a few rows stay in L1, K transposed and V
in L2. Sums are fp32; the greatest score of each row is subtracted before exp, so no finite score overflows.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.kernels.attention.attention_bf16 import attention_bf16
from veltair.compiler.kernels.attention.softmax import mask_index, softmax_row
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast, ramp
from veltair.compiler.kernels.matmul.matrix_unit import MatrixUnit


class Attention:
    """inputs: rows of heads side by side (images * tokens, …), Q, K and V each at a `place` (input, column) in them[,
    mask, which broadcasts to (images, heads, tokens, keys)]; weights: mask, if it is constant; output (images * tokens,
    heads * width) in the inputs' type, fp32 or bfloat16.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        tokens = int(spec.attributes["tokens"])
        chunks = [c for c in (1, 2, 3, 4) if c == 1 or tokens // c >= 32]
        if spec.inputs[0].dtype == "uint16":
            return [{"unit": MatrixUnit.of_cpu(features).value, "chunks": c} for c in chunks]
        tiles = ((6, 4), (12, 2), (8, 3)) if "avx512" in features else ((6, 1), (4, 1), (2, 2))
        return [{"unit": "vector", "chunks": c, "rows": r, "columns": v} for c in chunks for r, v in tiles]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        return _vectors(spec, point) if point["unit"] == "vector" else attention_bf16(spec, point)


def _vectors(spec: LayerSpec, point: Point) -> Kernel:
    a, y = spec.attributes, spec.outputs[0]
    heads, width, tokens, keys = (int(a[k]) for k in ("heads", "width", "tokens", "keys"))
    places: Any = a["places"]
    count, rows, columns = int(point["chunks"]), int(point["rows"]), int(point["columns"])
    panel = columns * LANES
    padded = -(-keys // panel) * panel
    vectors = width // LANES
    side = max(c for c in range(1, vectors + 1) if vectors % c == 0 and (c <= columns or c == 1))  # of a tile of V
    each = -(-tokens // count)
    operands: list[Activation | NDArray[Any]] = [*spec.inputs, *spec.weights.values(), y]

    def body(*buffers: Any) -> None:
        sides = [buffers[i] for i, _ in places]
        mask = buffers[-2] if a["masked"] else None
        Y = buffers[-1]
        images = T.floordiv(Y.shape[0], tokens)
        with T.parallel(0, images * heads * count) as task:
            turned = T.alloc_buffer((width, padded), "float32", scope="global")
            scores = T.alloc_buffer((rows, padded), "float32", scope="global")
            acc = T.alloc_buffer((rows * max(columns, side),), "float32x16", scope="local")
            inverse = T.alloc_buffer((rows,), "float32", scope="global")
            image, head = T.bind(task // (heads * count)), T.bind(task // count % heads)
            first = T.bind(task % count * each)
            at = [T.bind(column + head * width) for _, column in places]
            with T.serial(0, width) as d, T.serial(0, padded) as key:
                with when(key < keys):
                    T.buffer_store(turned, vector_load(sides[1], image * keys + key, at[1] + d, count=1), [d, key])
                with when(key >= keys):
                    T.buffer_store(turned, T.float32(0), [d, key])

            def block(row: Expr, taken: int) -> None:
                """So many rows from token `row` on."""
                with T.serial(0, padded // panel) as group:
                    for i in range(taken * columns):
                        T.buffer_store(acc, broadcast(0.0), [i])
                    with T.serial(0, width) as d:
                        taps = [T.bind(vector_load(turned, d, group * panel + c * LANES)) for c in range(columns)]
                        for r in range(taken):
                            value = T.bind(
                                broadcast(vector_load(sides[0], image * tokens + row + r, at[0] + d, count=1))
                            )
                            for c in range(columns):
                                T.buffer_store(acc, acc[r * columns + c] + value * taps[c], [r * columns + c])
                    for r in range(taken):
                        for c in range(columns):
                            T.buffer_store(scores, acc[r * columns + c], [r, ramp(group * panel + c * LANES)])
                with T.serial(0, taken) as r:
                    where = mask_index(mask, image, head, row + r)
                    total = softmax_row(scores, scores, r, keys, float(a["scale"]), mask, where)
                    T.buffer_store(inverse, T.float32(1) / total, [r])
                with T.serial(0, vectors // side) as part:
                    for i in range(taken * side):
                        T.buffer_store(acc, broadcast(0.0), [i])
                    with T.serial(0, keys) as key:
                        column = at[2] + part * (side * LANES)
                        taps = [
                            T.bind(vector_load(sides[2], image * keys + key, column + c * LANES)) for c in range(side)
                        ]
                        for r in range(taken):
                            value = T.bind(T.broadcast(scores[r, key], LANES))
                            for c in range(side):
                                T.buffer_store(acc, acc[r * side + c] + value * taps[c], [r * side + c])
                    for r in range(taken):
                        scale = T.bind(T.broadcast(inverse[r], LANES))
                        for c in range(side):
                            column = head * width + part * (side * LANES) + c * LANES
                            vector_store(Y, T.bind(acc[r * side + c] * scale), image * tokens + row + r, column)

            mine = T.bind(T.max(T.min(each, tokens - first), 0))
            with T.serial(0, mine // rows) as t:
                block(first + t * rows, rows)
            if each % rows or tokens % each:
                with T.serial(0, mine % rows) as r:
                    block(first + mine // rows * rows + r, 1)

    function = build_prim_func(operands, body)
    block_size = padded * (width * 8 + rows * 4)
    return Kernel(function, tuple(spec.weights.values()), block_size, heads * count * rows * columns)

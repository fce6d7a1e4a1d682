"""Attention of all heads in one layer: scores, softmax and their product with V for a few rows at a time.

A task takes one head of one image and a share of its queries. The scores of a few rows stay in L1, the transposed K and
V in L2. Sums are fp32; the maximum of the scores of each row is subtracted before exp, so no finite score overflows.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.sequence import AttentionParameters
from veltair.compiler.kernels.attention.attention_bf16 import Bf16Attention
from veltair.compiler.kernels.attention.head_places import HeadPlace, head_places
from veltair.compiler.kernels.attention.softmax import RowSoftmax
from veltair.compiler.kernels.matmul.matrix_unit import MatrixUnit


class Attention:
    """inputs: rows of heads side by side (images * tokens, …), or of one head each (images * heads * tokens, …), which
    hold Q, K and V at their places[, mask, which broadcasts to (images, heads, tokens, keys)]; weights: mask, if it is
    constant, where that of several images repeats; output (images * tokens, heads * width) in the inputs' type, fp32
    or bfloat16. Parameters: `AttentionParameters`.

    ::

        avx2 = frozenset({"avx2"})
        point = Attention().points(spec, avx2)[0]  # {"unit": "vector", "chunks": 1, "rows": 6, "columns": 1}
        kernel = Attention().build(spec, point, avx2)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        tokens = spec.parameters_as(AttentionParameters).tokens
        chunks = [c for c in (1, 2, 3, 4) if c == 1 or tokens // c >= 32]
        if spec.inputs[0].dtype == "uint16":
            return [{"unit": MatrixUnit.of_cpu(features).value, "chunks": c} for c in chunks]
        tiles = ((6, 4), (12, 2), (8, 3)) if "avx512" in features else ((6, 1), (4, 1), (2, 2))
        unit = MatrixUnit.VECTOR.value
        return [{"unit": unit, "chunks": c, "rows": r, "columns": v} for c in chunks for r, v in tiles]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        if MatrixUnit(str(point["unit"])) is MatrixUnit.VECTOR:
            return _VectorAttention(spec, point).build()
        return Bf16Attention(spec, point).build()


class _VectorAttention:
    """Code of one layer in fp32 vectors."""

    def __init__(self, spec: LayerSpec, point: Point) -> None:
        self.spec, self.parameters = spec, spec.parameters_as(AttentionParameters)
        self.chunks, self.rows, self.columns = (int(point[name]) for name in ("chunks", "rows", "columns"))
        self.panel = self.columns * LANES
        self.padded_keys = -(-self.parameters.keys // self.panel) * self.panel
        self.vectors = self.parameters.width // LANES
        widths = range(1, self.vectors + 1)  # of a tile of V, in vectors
        self.v_columns = max(c for c in widths if self.vectors % c == 0 and (c <= self.columns or c == 1))
        self.queries_of_task = -(-self.parameters.tokens // self.chunks)

    def build(self) -> Kernel:
        spec, parameters = self.spec, self.parameters
        weights = tuple(spec.weights.values())
        function = build_prim_func([*spec.inputs, *weights, spec.outputs[0]], self._emit)
        block_size = self.padded_keys * (parameters.width * 8 + self.rows * 4)
        parallelism = parameters.heads * self.chunks * self.rows * self.columns
        return Kernel(function, weights, block_size, parallelism)

    def _emit(self, *buffers: Any) -> None:
        parameters, padded, width = self.parameters, self.padded_keys, self.parameters.width
        heads, tokens, share = parameters.heads, parameters.tokens, self.queries_of_task
        self.output = buffers[-1]
        mask = buffers[-2] if parameters.masked else None
        images = T.floordiv(self.output.shape[0], tokens)
        with T.parallel(0, images * heads * self.chunks) as task:
            self.transposed_k = T.alloc_buffer((width, padded), "float32", scope="global")
            self.scores = T.alloc_buffer((self.rows, padded), "float32", scope="global")
            self.softmax = RowSoftmax(self.scores, self.scores, parameters.keys, parameters.scale, mask)
            largest_tile = self.rows * max(self.columns, self.v_columns)
            self.sums = T.alloc_buffer((largest_tile,), "float32x16", scope="local")
            self.inverse = T.alloc_buffer((self.rows,), "float32", scope="global")
            self.image = T.bind(task // (heads * self.chunks))
            self.head = T.bind(task // self.chunks % heads)
            first = T.bind(task % self.chunks * share)
            self.query, self.key, self.value = head_places(parameters, buffers, self.image, self.head)
            self._transpose_k(self.key)
            count = T.bind(T.max(T.min(share, tokens - first), 0))
            with T.serial(0, count // self.rows) as t:
                self._emit_rows(first + t * self.rows, self.rows)
            if share % self.rows or tokens % share:
                with T.serial(0, count % self.rows) as r:
                    self._emit_rows(first + count // self.rows * self.rows + r, 1)

    def _transpose_k(self, place: HeadPlace) -> None:
        """K of the head as (width, keys), with zeros behind the last key."""
        keys = self.parameters.keys
        with T.serial(0, self.parameters.width) as d, T.serial(0, self.padded_keys) as key:
            with when(key < keys):
                value = vector_load(place.buffer, place.row + key, place.column + d, count=1)
                T.buffer_store(self.transposed_k, value, [d, key])
            with when(key >= keys):
                T.buffer_store(self.transposed_k, T.float32(0), [d, key])

    def _emit_rows(self, token: Expr, count: int) -> None:
        """`count` queries from `token` on."""
        self._compute_scores(token, count)
        with T.serial(0, count) as r:
            mask_index = self.softmax.mask_index(self.image, self.head, token + r)
            total = self.softmax.emit(r, mask_index)
            T.buffer_store(self.inverse, T.float32(1) / total, [r])
        self._mix_values(token, count)

    def _compute_scores(self, token: Expr, count: int) -> None:
        """Q K^T of some queries, a panel of keys at a time."""
        sums, columns, place = self.sums, self.columns, self.query
        with T.serial(0, self.padded_keys // self.panel) as group:
            for i in range(count * columns):
                T.buffer_store(sums, broadcast(0.0), [i])
            with T.serial(0, self.parameters.width) as d:
                keys = [
                    T.bind(vector_load(self.transposed_k, d, group * self.panel + c * LANES)) for c in range(columns)
                ]
                for r in range(count):
                    at = vector_load(place.buffer, place.row + token + r, place.column + d, count=1)
                    value = T.bind(broadcast(at))
                    for c in range(columns):
                        T.buffer_store(sums, sums[r * columns + c] + value * keys[c], [r * columns + c])
            for r in range(count):
                for c in range(columns):
                    T.buffer_store(self.scores, sums[r * columns + c], [r, ramp(group * self.panel + c * LANES)])

    def _mix_values(self, token: Expr, count: int) -> None:
        """The softmax times V, some vectors of its columns at a time, divided by the sums and stored."""
        sums, columns, parameters, place = self.sums, self.v_columns, self.parameters, self.value
        with T.serial(0, self.vectors // columns) as part:
            for i in range(count * columns):
                T.buffer_store(sums, broadcast(0.0), [i])
            with T.serial(0, parameters.keys) as key:
                first, row = place.column + part * (columns * LANES), place.row + key
                values = [T.bind(vector_load(place.buffer, row, first + c * LANES)) for c in range(columns)]
                for r in range(count):
                    weight = T.bind(T.broadcast(self.scores[r, key], LANES))
                    for c in range(columns):
                        T.buffer_store(sums, sums[r * columns + c] + weight * values[c], [r * columns + c])
            for r in range(count):
                scale = T.bind(T.broadcast(self.inverse[r], LANES))
                for c in range(columns):
                    column = self.head * parameters.width + part * (columns * LANES) + c * LANES
                    value = T.bind(sums[r * columns + c] * scale)
                    vector_store(self.output, value, self.image * parameters.tokens + token + r, column)

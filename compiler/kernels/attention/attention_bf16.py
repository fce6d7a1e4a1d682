"""Attention on bfloat16: a task packs K and V of a head in pairs once, then computes scores of 32 rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import allocate_scratch, vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.transpose import transpose_16x16
from veltair.compiler.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.sequence import AttentionParameters
from veltair.compiler.kernels.attention.head_places import HeadPlace, head_places
from veltair.compiler.kernels.attention.softmax import RowSoftmax
from veltair.compiler.kernels.matmul.amx_tiles import BLOCK, STEP, TILE
from veltair.compiler.kernels.matmul.bf16_microkernels import LeftOperand, Microkernel, RightOperand, open_microkernel
from veltair.compiler.kernels.matmul.matrix_unit import MatrixUnit


class Bf16Attention:
    """Code of one layer at one point; Q, K, V and the output are bfloat16.

    Where the queries do not fill the last tile, it moves up and computes some of them twice.

    ::

        kernel = Bf16Attention(spec, {"unit": "amx", "chunks": 2}).build()
    """

    def __init__(self, spec: LayerSpec, point: Point) -> None:
        self.spec, self.parameters = spec, spec.parameters_as(AttentionParameters)
        self.unit, self.chunks = MatrixUnit(str(point["unit"])), int(point["chunks"])
        width, tokens, keys = self.parameters.width, self.parameters.tokens, self.parameters.keys
        self.width_steps, self.key_steps = -(-width // STEP), -(-keys // STEP)  # of the two products
        self.padded_keys, self.height = self.key_steps * STEP, min(tokens, TILE)
        self.parts = -(-width // BLOCK)  # register blocks of 32 columns of the output
        self.blocks = -(-tokens // BLOCK)  # register blocks of rows
        self.blocks_of_task = -(-self.blocks // self.chunks)

    def build(self) -> Kernel:
        spec, padded = self.spec, self.padded_keys
        weights = tuple(spec.weights.values())
        function = build_prim_func([*spec.inputs, *weights, spec.outputs[0]], self._emit)
        block_size = padded * (self.width_steps * STEP + self.parts * BLOCK) * 2 + BLOCK * padded * 6
        return Kernel(function, weights, block_size, self.parameters.heads * self.chunks * 4)

    def _emit(self, *buffers: Any) -> None:
        parameters, chunks = self.parameters, self.chunks
        self.output = buffers[-1]
        mask = buffers[-2] if parameters.masked else None
        images = T.floordiv(self.output.shape[0], parameters.tokens)
        with T.parallel(0, images * parameters.heads * chunks) as task:
            self._allocate()
            self.softmax = RowSoftmax(self.scores, self.likely, parameters.keys, parameters.scale, mask)
            self.image = T.bind(task // (parameters.heads * chunks))
            self.head = T.bind(task // chunks % parameters.heads)
            self.query, key, value = head_places(parameters, buffers, self.image, self.head)
            self._pack_k(key)
            self._pack_v(value)
            begin = T.bind(task % chunks * self.blocks_of_task)
            count = T.max(T.min(self.blocks_of_task, self.blocks - begin), 0)
            with open_microkernel(self.unit, T.int32(self.height)) as multiply, T.serial(0, count) as block:
                self._emit_block((begin + block) * BLOCK, multiply)

    def _allocate(self) -> None:
        tiles = self.padded_keys // TILE
        # K in pairs along the width, V in pairs along the keys.
        self.packed_k = T.alloc_buffer((tiles, self.width_steps, TILE, TILE), "uint32", scope="global")
        self.packed_v = allocate_scratch((self.key_steps, self.parts * 2, TILE, TILE), "uint32")
        self.queries = allocate_scratch((BLOCK, self.width_steps * STEP), "uint16")
        self.scores = allocate_scratch((BLOCK, self.padded_keys), "float32")
        self.likely = allocate_scratch((BLOCK, self.padded_keys), "uint16")
        self.inverse = allocate_scratch((BLOCK,), "float32")
        self.mixed = allocate_scratch((BLOCK, BLOCK), "float32")

    def _pack_k(self, place: HeadPlace) -> None:
        """Transpose 16 keys x 32 columns at a time in registers; at the ends element by element, with zeros."""
        width, keys = self.parameters.width, self.parameters.keys
        with T.grid(self.padded_keys // TILE, self.width_steps) as (tile, step):
            key, d = T.bind(tile * TILE), T.bind(step * STEP)
            with when(T.And(key + TILE <= keys, d + STEP <= width)):
                columns = T.ramp(place.column + d, 1, STEP)
                rows = [place.buffer[place.row + key + n, columns] for n in range(TILE)]
                for p, line in enumerate(transpose_16x16([T.bind(T.reinterpret("uint32x16", row)) for row in rows])):
                    T.buffer_store(self.packed_k, line, [tile, step, p, ramp(0)])
            with when(T.Or(key + TILE > keys, d + STEP > width)), T.grid(TILE, TILE) as (p, n):
                inside = T.And(key + n < keys, d + p * 2 < width)
                columns = T.ramp(place.column + d + p * 2, 1, 2)
                pair = place.buffer[place.row + T.min(key + n, keys - 1), columns]
                value = T.bind(T.reinterpret("uint32", pair))
                T.buffer_store(self.packed_k, T.Select(inside, value, T.uint32(0)), [tile, step, p, n])

    def _pack_v(self, place: HeadPlace) -> None:
        """Interleave two keys at a time, with zeros behind the last key and the last column."""
        width, keys = self.parameters.width, self.parameters.keys
        with T.grid(self.key_steps, TILE) as (step, p):
            for part in range(self.parts * 2):
                halves = []
                for j in range(2):
                    key = step * STEP + p * 2 + j
                    value = place.buffer[place.row + T.min(key, keys - 1), ramp(place.column + part * TILE)]
                    wide = T.cast(value, "uint32x16")
                    halves.append(T.Select(key < keys, wide, T.broadcast(T.uint32(0), LANES)))
                if part * TILE < width:
                    high = T.shift_left(halves[1], T.broadcast(T.uint32(16), LANES))
                    pair = T.bitwise_or(halves[0], high)
                else:
                    pair = T.broadcast(T.uint32(0), LANES)
                T.buffer_store(self.packed_v, pair, [step, part, p, ramp(0)])

    def _emit_block(self, token: Expr, multiply: Microkernel) -> None:
        """32 queries from `token` on."""
        tokens = self.parameters.tokens
        first = [T.bind(T.max(T.min(token + half * TILE, tokens - TILE), 0)) for half in range(2)]
        queries = self._load_queries(first)
        with T.serial(0, self.padded_keys // BLOCK) as block:
            keys = RightOperand(self.packed_k, lambda tile, step: (block * 2 + tile, step))
            multiply(self.scores, block * 2 * TILE, queries, keys, self.width_steps)
        for half in range(2):
            with T.serial(0, self.height) as r:
                mask_index = self.softmax.mask_index(self.image, self.head, first[half] + r)
                total = self.softmax.emit(half * TILE + r, mask_index)
                T.buffer_store(self.inverse, T.float32(1) / total, [half * TILE + r])
        likely = LeftOperand(self.likely, lambda half, r, key: (half * TILE + r, key), self.padded_keys * 2)
        for part in range(self.parts):
            multiply(self.mixed, 0, likely, self._values(part), self.key_steps)
            self._store_part(part, first)

    def _load_queries(self, first: Sequence[Expr]) -> LeftOperand:
        """The queries where they lie, or copied with zeros behind a width that is no multiple of a step."""
        width, place = self.parameters.width, self.query
        if width % STEP == 0:
            stride_bytes = self.spec.inputs[self.parameters.places[0][0]].shape[1] * 2
            return LeftOperand(
                place.buffer, lambda half, r, d: (place.row + first[half] + r, place.column + d), stride_bytes
            )
        for half in range(2):
            with T.grid(self.height, self.width_steps * STEP) as (r, d):
                value = place.buffer[place.row + first[half] + r, place.column + T.min(d, width - 1)]
                value = T.Select(d < width, value, T.uint16(0))
                T.buffer_store(self.queries, value, [half * TILE + r, d])
        return LeftOperand(self.queries, lambda half, r, d: (half * TILE + r, d), self.width_steps * STEP * 2)

    def _values(self, part: int) -> RightOperand:
        return RightOperand(self.packed_v, lambda tile, step: (step, part * 2 + tile))

    def _store_part(self, part: int, first: Sequence[Expr]) -> None:
        """Divide 32 columns of the output by the sums of the softmax and store them."""
        width, row = self.parameters.width, self.image * self.parameters.tokens
        for half in range(2):
            with T.serial(0, self.height) as r:
                scale = T.bind(T.broadcast(self.inverse[half * TILE + r], LANES))
                for lane in range(0, min(BLOCK, width - part * BLOCK), LANES):
                    value = T.bind(vector_load(self.mixed, half * TILE + r, lane) * scale)
                    vector_store(self.output, value, row + first[half] + r, self.head * width + part * BLOCK + lane)

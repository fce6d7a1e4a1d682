"""Attention on bfloat16: K and V of a head packed in pairs once a task, scores of 32 rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.kernels.attention.softmax import mask_index, softmax_row
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import allocate_scratch, vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.kernels.matmul.amx_tiles import BLOCK as PAIRS
from veltair.compiler.kernels.matmul.amx_tiles import STEP as DEPTH
from veltair.compiler.kernels.matmul.amx_tiles import TILE
from veltair.compiler.kernels.matmul.bf16_microkernels import LeftOperand as Left
from veltair.compiler.kernels.matmul.bf16_microkernels import RightOperand as Right
from veltair.compiler.kernels.matmul.bf16_microkernels import open_microkernel
from veltair.compiler.kernels.matmul.matrix_unit import MatrixUnit


def attention_bf16(spec: LayerSpec, point: Point) -> Kernel:
    """Q, K, V, output bfloat16. Where queries do not fill the last tile, it moves up and makes some twice."""
    a, y = spec.attributes, spec.outputs[0]
    heads, width, tokens, keys = (int(a[k]) for k in ("heads", "width", "tokens", "keys"))
    places: Any = a["places"]
    chunks = int(point["chunks"])
    deep, long = -(-width // DEPTH), -(-keys // DEPTH)  # steps of the two products
    padded, height = long * DEPTH, min(tokens, TILE)
    parts = -(-width // PAIRS)  # of the output: register blocks of 32 columns
    pairs = -(-tokens // PAIRS)
    each = -(-pairs // chunks)
    pitch = [spec.inputs[i].shape[1] * 2 for i, _ in places]  # bytes between rows
    operands: list[Activation | NDArray[Any]] = [*spec.inputs, *spec.weights.values(), y]

    def body(*buffers: Any) -> None:
        Q, K, V = (buffers[i] for i, _ in places)
        mask = buffers[-2] if a["masked"] else None
        Y = buffers[-1]
        images = T.floordiv(Y.shape[0], tokens)

        def panel(part: int) -> Callable[[int, Expr], tuple[Expr, ...]]:
            return lambda tile, step: (step, part * 2 + tile)

        with T.parallel(0, images * heads * chunks) as task:
            across = T.alloc_buffer(
                (padded // TILE, deep, TILE, TILE), "uint32", scope="global"
            )  # K: pairs of d x keys
            along = allocate_scratch((long, parts * 2, TILE, TILE), "uint32")  # V: pairs of keys x d
            queries = allocate_scratch((PAIRS, deep * DEPTH), "uint16")
            scores = allocate_scratch((PAIRS, padded), "float32")
            likely = allocate_scratch((PAIRS, padded), "uint16")
            inverse = allocate_scratch((PAIRS,), "float32")
            mixed = allocate_scratch((PAIRS, PAIRS), "float32")
            image, head = T.bind(task // (heads * chunks)), T.bind(task // chunks % heads)
            at = [T.bind(column + head * width) for _, column in places]

            with T.grid(padded // TILE, deep) as (tile, step):
                key, d = T.bind(tile * TILE), T.bind(step * DEPTH)
                with when(T.And(key + TILE <= keys, d + DEPTH <= width)):
                    lines = [K[image * keys + key + n, T.ramp(at[1] + d, 1, DEPTH)] for n in range(TILE)]
                    pairs_of = _turned([T.bind(T.reinterpret("uint32x16", line)) for line in lines])
                    for p, line in enumerate(pairs_of):
                        T.buffer_store(across, line, [tile, step, p, ramp(0)])
                with when(T.Or(key + TILE > keys, d + DEPTH > width)), T.grid(TILE, TILE) as (p, n):
                    inside = T.And(key + n < keys, d + p * 2 < width)
                    two = K[image * keys + T.min(key + n, keys - 1), T.ramp(at[1] + d + p * 2, 1, 2)]
                    value = T.bind(T.reinterpret("uint32", two))
                    T.buffer_store(across, T.Select(inside, value, T.uint32(0)), [tile, step, p, n])
            with T.grid(long, TILE) as (step, p):
                for part in range(parts * 2):
                    sides = []
                    for j in range(2):
                        key = step * DEPTH + p * 2 + j
                        value = V[image * keys + T.min(key, keys - 1), ramp(at[2] + part * TILE)]
                        wide = T.cast(value, "uint32x16")
                        sides.append(T.Select(key < keys, wide, T.broadcast(T.uint32(0), LANES)))
                    if part * TILE < width:
                        high = T.shift_left(sides[1], T.broadcast(T.uint32(16), LANES))
                        both = T.bitwise_or(sides[0], high)
                    else:
                        both = T.broadcast(T.uint32(0), LANES)
                    T.buffer_store(along, both, [step, part, p, ramp(0)])

            begin = T.bind(task % chunks * each)
            with (
                open_microkernel(MatrixUnit(str(point["unit"])), T.int32(height)) as product,
                T.serial(0, T.max(T.min(each, pairs - begin), 0)) as pair,
            ):
                start = (begin + pair) * PAIRS
                first = [T.bind(T.max(T.min(start + half * TILE, tokens - TILE), 0)) for half in range(2)]
                left = Left(Q, lambda half, r, d: (image * tokens + first[half] + r, at[0] + d), pitch[0])
                if width % DEPTH:
                    for half in range(2):
                        with T.grid(height, deep * DEPTH) as (r, d):
                            value = Q[image * tokens + first[half] + r, at[0] + T.min(d, width - 1)]
                            value = T.Select(d < width, value, T.uint16(0))
                            T.buffer_store(queries, value, [half * TILE + r, d])
                    left = Left(queries, lambda half, r, d: (half * TILE + r, d), deep * DEPTH * 2)

                with T.serial(0, padded // (2 * TILE)) as some:
                    right = Right(across, lambda tile, step: (some * 2 + tile, step))
                    product(scores, some * 2 * TILE, left, right, deep)
                for half in range(2):
                    with T.serial(0, height) as r:
                        where = mask_index(mask, image, head, first[half] + r)
                        total = softmax_row(scores, likely, half * TILE + r, keys, float(a["scale"]), mask, where)
                        T.buffer_store(inverse, T.float32(1) / total, [half * TILE + r])
                left = Left(likely, lambda half, r, key: (half * TILE + r, key), padded * 2)
                for part in range(parts):
                    product(mixed, 0, left, Right(along, panel(part)), long)
                    for half in range(2):
                        with T.serial(0, height) as r:
                            scale = T.bind(T.broadcast(inverse[half * TILE + r], LANES))
                            for lane in range(0, min(PAIRS, width - part * PAIRS), LANES):
                                value = T.bind(vector_load(mixed, half * TILE + r, lane) * scale)
                                column = head * width + part * PAIRS + lane
                                vector_store(Y, value, image * tokens + first[half] + r, column)

    function = build_prim_func(operands, body)
    block_size = padded * (deep * DEPTH + parts * PAIRS) * 2 + PAIRS * padded * 6
    return Kernel(function, tuple(spec.weights.values()), block_size, heads * chunks * 4)


def _turned(rows: list[Expr]) -> list[Expr]:
    """The columns of 16 vectors of 16: four rounds, each of which mixes vectors twice as far apart."""
    for distance in (8, 4, 2, 1):
        mixed = list(rows)
        for low in (i for i in range(LANES) if not i & distance):
            pair = [rows[low], rows[low + distance]]
            for which in range(2):
                # Lane j of the lower result comes from the lower vector where j lacks the bit, else from the other.
                picks = [(j & ~distance) + which * distance + (LANES if j & distance else 0) for j in range(LANES)]
                mixed[low + which * distance] = T.bind(T.Shuffle(pair, [T.int32(i) for i in picks]))
        rows = mixed
    return rows

"""Matrix product with constant weights on bfloat16, in AMX tiles.

Rows are read as they lie: a tile load has a stride. Four accumulator tiles make 32 rows x 32 columns; each step of 32
products loads two tiles of rows and two of weights. A task takes `panels` panels of 32 columns, whose weights stay in
L1 and L2, and a share of the rows, which stream past them. Where the rows do not fill the last tile, it moves up and
makes some of them twice; fewer than a tile's rows are a smaller tile.

Sums leave the tiles through memory. Those of a block are finished by vectors between the products of the next one, a
few rows a step, so that what waits for memory in one waits beside the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.amx import (
    load_tile,
    load_tile_configuration,
    multiply_bf16_tiles,
    release_tiles,
    store_tile,
    zero_tile,
)
from veltair.compiler.kernels.codegen.bf16 import array_to_bf16
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import allocate_scratch, prefetch, vector_load
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.kernels.codegen.weight_packing import pad_axis
from veltair.compiler.kernels.matmul.matmul_operands import matmul_rows, sides_of, store_pair

TILE = 16  # rows of a tile
DEPTH = 32  # bfloat16 values in a tile row: products of one step
PANEL = 32  # columns of a register block: two tiles
PAIRS = 2 * TILE  # rows of a register block
SWEEP = 16  # pairs of tiles whose sums a task keeps at a time: with those of a few panels they stay in L2
FAR = 3 << 20  # bytes of a sweep's rows, from which on they are not in L2 when the next stretch or panels want them
FETCHING = 4  # panels that share the fetching of rows; fewer would each have too many to fetch
Block = tuple[Expr, Expr, Expr]  # panel, first row, place of its sums


def pack(weight: NDArray[np.float32]) -> NDArray[np.uint16]:
    """(K, N) -> (N/32, K/32, 2, 16, 16, 2): for each step two tiles of 16 pairs of products x 16 columns."""
    padded = pad_axis(pad_axis(weight, 0, DEPTH), 1, PANEL)
    depth, width = padded.shape
    steps = padded.reshape(depth // DEPTH, DEPTH // 2, 2, width // PANEL, 2, TILE)
    return array_to_bf16(np.ascontiguousarray(steps.transpose(3, 0, 4, 1, 5, 2)))


def configure(configuration: Any, rows: Expr) -> None:
    """Fill in 64 bytes: accumulators 0 … 3 and left operands 4, 5 of so many rows, right operands 6, 7 of 16.

    Palette 1, Intel SDM vol. 1, 18.3.
    """
    T.buffer_store(configuration, T.broadcast(T.uint8(0), 64), [T.ramp(0, 1, 64)])
    T.buffer_store(configuration, T.uint8(1), [0])
    for tile in range(8):
        T.buffer_store(configuration, T.uint8(64), [16 + 2 * tile])
        T.buffer_store(configuration, T.cast(rows, "uint8") if tile < 6 else T.uint8(TILE), [48 + tile])


def matmul_amx(spec: LayerSpec, point: Point) -> Kernel:
    """Sums of a stretch of `steps` steps are kept between stretches, so that rows and weights of one stay in L1.

    A task takes its rows in sweeps, so that these sums stay in L2.
    """
    x, y = spec.inputs[0], spec.outputs[0]
    depth, width = x.shape[1], y.shape[1]
    panels, chunks, stretch = int(point["panels"]), int(point["chunks"]), int(point["steps"])
    weight = pack(spec.weights["weight"])  # (panels, steps, 2, 16, 16, 2)
    bias = pad_axis(spec.weights["bias"], 0, PANEL)
    activation = str(spec.attributes["activation"])
    steps, tail = depth // DEPTH, depth % DEPTH
    groups = weight.shape[0] // panels
    sweep = min(SWEEP, -(-matmul_rows(spec) // PAIRS))
    stretches = list(range(0, max(steps, 1), stretch))
    far = sweep * PAIRS * depth * 2 > FAR and panels >= FETCHING
    fetched = -(-PAIRS // panels) if far else 0  # rows of each step

    def body(X: Any, *rest: Any) -> None:
        sides = sides_of(spec, rest)
        W, bias_, Y = rest[-3:]
        rows = X.shape[0]

        def step(panel: Expr, k: Expr, sources: Sequence[tuple[Expr, int]]) -> None:
            """32 products of 32 x 32 sums."""
            for half, (address, stride) in enumerate(sources):
                load_tile(4 + half, address, stride)
            for half in range(2):
                load_tile(6 + half, T.address_of(W[panel, k, half, 0, 0, 0]), 64)
            for register in range(4):
                a, b = 4 + register // 2, 6 + register % 2
                multiply_bf16_tiles(register, a, b)

        with T.parallel(0, groups * chunks) as task:
            kept = sweep * panels if len(stretches) > 1 else 1
            sums = allocate_scratch((kept, 2, TILE, PANEL), "float32")
            configuration = allocate_scratch((64,), "uint8")
            ends = allocate_scratch((2, TILE, DEPTH), "uint16") if tail else None
            if ends is not None:
                with T.grid(2, TILE) as (half, r):
                    T.buffer_store(ends, T.broadcast(T.uint16(0), DEPTH), [half, r, ramp(0, DEPTH)])
            height = T.bind(T.min(rows, TILE))
            configure(configuration, height)
            load_tile_configuration(T.address_of(configuration[0]))
            # Rows stay in L2 while the weights of all groups pass.
            group, chunk = T.bind(task % groups), T.bind(task // groups)
            pairs = T.bind(T.ceildiv(rows, PAIRS))
            each = T.bind(T.ceildiv(pairs, chunks))
            mine = T.bind(T.max(T.min(each, pairs - chunk * each), 0))

            def finish(panel: Expr, start: Expr, place: Expr, n: Expr) -> None:
                """The nth row of a block; where there are fewer, the last one again, which costs less than a branch."""
                half, r = T.bind(n // TILE), T.bind(T.min(n % TILE, height - 1))
                row = T.bind(T.max(T.min(start + half * TILE, rows - TILE), 0) + r)
                column = T.bind(panel * PANEL)
                low, high = (
                    vector_load(sums, place, half, r, at) + vector_load(bias_, column + at) for at in (0, LANES)
                )
                store_pair(Y, low, high, sides, activation, row, column, width)

            def accumulate(begin: int, nth: Expr, block: Callable[[Expr], Block], share: Expr) -> None:
                """One stretch of the nth block of a sweep; in the last one, the block before is finished."""
                panel, start, place = block(nth)
                last, count = begin == stretches[-1], min(stretch, steps - begin)
                finished = -(-PAIRS // max(count, 1))  # rows of a step
                pair = T.bind(nth // panels)
                first = [T.bind(T.max(T.min(start + half * TILE, rows - TILE), 0)) for half in range(2)]
                if ends is not None and last:
                    for half in range(2):
                        with T.grid(height, tail) as (r, k):
                            T.buffer_store(ends, X[first[half] + r, steps * DEPTH + k], [half, r, k])
                for register in range(4):
                    where = T.address_of(sums[place, register // 2, 0, register % 2 * TILE])
                    if begin:
                        load_tile(register, where, PANEL * 4)
                    else:
                        zero_tile(register)
                before = block(T.max(nth - 1, 0))
                with T.serial(0, count) as at:
                    k = T.bind(begin + at)
                    step(panel, k, [(T.address_of(X[row, k * DEPTH]), depth * 2) for row in first])
                    # Weights come from memory: each pair of tiles fetches its share of the next stretch's.
                    ahead = (panel + panels, at) if last else (panel, k + stretch)
                    with T.serial(0, share) as line:
                        prefetch(W[(*ahead, 0, pair * share + line, 0, 0)])
                    # So may rows: each panel fetches its share of the next stretch's, or of the next sweep's first.
                    next_k, below = (at, sweep * PAIRS) if last else (k + stretch, 0)
                    for r in range(fetched):
                        prefetch(X[start + below + nth % panels * fetched + r, next_k * DEPTH])
                    if last:
                        with when(nth > 0):
                            for i in range(finished):
                                finish(*before, T.min(at * finished + i, PAIRS - 1))
                if last and not count:
                    with when(nth > 0), T.serial(0, PAIRS) as n:
                        finish(*before, n)
                if ends is not None and last:
                    step(panel, steps, [(T.address_of(ends[half, 0, 0]), DEPTH * 2) for half in range(2)])
                for register in range(4):
                    where = T.address_of(sums[place, register // 2, 0, register % 2 * TILE])
                    store_tile(register, where, PANEL * 4)

            with T.serial(0, T.ceildiv(mine, sweep)) as turn:
                above = T.bind(chunk * each + turn * sweep)
                here = T.bind(T.min(mine - turn * sweep, sweep))
                share = T.bind(T.ceildiv(2 * TILE, here))  # lines of 64 bytes, of a step's

                def block(nth: Expr) -> Block:
                    first = T.bind((above + nth // panels) * PAIRS)
                    return T.bind(group * panels + nth % panels), first, nth if len(stretches) > 1 else 0

                for begin in stretches:
                    with T.serial(0, here * panels) as nth:
                        accumulate(begin, nth, block, share)
                with T.serial(0, PAIRS) as n:
                    finish(*block(here * panels - 1), n)
            release_tiles()

    function = build_prim_func([*spec.inputs, weight, bias, *spec.outputs], body)
    taken = min(-(-matmul_rows(spec) // (PAIRS * chunks)), sweep) * PAIRS
    block_size = panels * weight[0].nbytes + taken * (depth * 2 + panels * PANEL * np.dtype(y.dtype).itemsize)
    return Kernel(function, (weight, bias), block_size, groups * chunks * 4)

"""Matrix product with constant weights on bfloat16, in AMX tiles.

Rows are read where they lie: a tile load has a stride. Four accumulator tiles make a block of 32 rows x 32 columns;
each step of 32 products loads two tiles of rows and two of weights. A task takes `panels` panels of 32 columns, whose
weights stay in L1 and L2, and a share of the rows, which stream past them. Where the rows do not fill the last tile,
it moves up and computes some of them twice; fewer rows than a tile has are a smaller tile.

The reduction goes in stretches of `steps` steps, so that the rows and weights of one stretch stay in L1; sums are kept
between stretches. A task takes its rows in sweeps of at most 16 blocks, so that these sums stay in L2.

Sums leave the tiles through memory. Those of a block are finished by vectors between the products of the next block, a
few rows a step, so that the memory accesses of both overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.amx import load_tile, multiply_bf16_tiles, release_tiles, store_tile, zero_tile
from veltair.compiler.codegen.bf16 import array_to_bf16
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import allocate_scratch, prefetch, vector_load
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.matmul.amx_tiles import BLOCK, LEFT, RIGHT, STEP, TILE, configure_tiles
from veltair.compiler.kernels.matmul.matmul_operands import MatmulEpilogue, max_rows

SWEEP = 16  # blocks whose sums a task keeps at a time: with those of a few panels they stay in L2
FAR_BYTES = 3 << 20  # rows of a sweep of this size are not in L2 any more when the next stretch or panels want them
FETCHING_PANELS = 4  # panels that share the fetching of rows; each of fewer would have too many to fetch
ACCUMULATORS = range(4)


class Block(NamedTuple):
    """A register block: 32 rows x 32 columns of the output.

    >>> Block(panel=2, first_row=32, slot=0).first_row
    32
    """

    panel: Expr  # which 32 columns
    first_row: Expr
    slot: Expr  # where its sums lie in the scratch memory


class AmxMatmul:
    """Code and packed weights of one layer at one point.

    ::

        kernel = AmxMatmul(spec, {"unit": "amx", "panels": 4, "chunks": 2, "steps": 8}).build()
    """

    def __init__(self, spec: LayerSpec, point: Point) -> None:
        self.spec = spec
        self.panels, self.chunks, self.stretch = (int(point[name]) for name in ("panels", "chunks", "steps"))
        self.depth = spec.inputs[0].shape[1]
        self.steps, self.tail = divmod(self.depth, STEP)
        self.weight = pack_tiles(spec.weights["weight"])
        self.bias = pad_axis(spec.weights["bias"], 0, BLOCK)
        self.groups = self.weight.shape[0] // self.panels
        self.sweep = min(SWEEP, -(-max_rows(spec) // BLOCK))
        self.stretches = list(range(0, max(self.steps, 1), self.stretch))  # the first step of each

    @property
    def fetched_rows(self) -> int:
        """Rows that each block fetches in a step for a later stretch or sweep."""
        far = self.sweep * BLOCK * self.depth * 2 > FAR_BYTES and self.panels >= FETCHING_PANELS
        return -(-BLOCK // self.panels) if far else 0

    def build(self) -> Kernel:
        def body(*buffers: Any) -> None:
            _Task(self, buffers).emit()

        function = build_prim_func([*self.spec.inputs, self.weight, self.bias, *self.spec.outputs], body)
        rows = min(-(-max_rows(self.spec) // (BLOCK * self.chunks)), self.sweep) * BLOCK
        row_bytes = self.depth * 2 + self.panels * BLOCK * np.dtype(self.spec.outputs[0].dtype).itemsize
        block_size = self.panels * self.weight[0].nbytes + rows * row_bytes
        return Kernel(function, (self.weight, self.bias), block_size, self.groups * self.chunks * len(ACCUMULATORS))


def pack_tiles(weight: NDArray[np.float32]) -> NDArray[np.uint16]:
    """(K, N) -> (N/32, K/32, 2, 16, 16, 2): for each step two tiles of 16 pairs of products x 16 columns."""
    padded = pad_axis(pad_axis(weight, 0, STEP), 1, BLOCK)
    depth, width = padded.shape
    steps = padded.reshape(depth // STEP, STEP // 2, 2, width // BLOCK, 2, TILE)
    return array_to_bf16(np.ascontiguousarray(steps.transpose(3, 0, 4, 1, 5, 2)))


class _Task:
    """Emits the code of a parallel task: a group of panels times a chunk of the rows."""

    def __init__(self, matmul: AmxMatmul, buffers: Sequence[Any]) -> None:
        self.matmul = matmul
        self.X, *rest = buffers
        self.W, self.bias = rest[-3:-1]
        self.epilogue = MatmulEpilogue.of_layer(matmul.spec, rest)
        self.rows = self.X.shape[0]

    def emit(self) -> None:
        matmul = self.matmul
        with T.parallel(0, matmul.groups * matmul.chunks) as task:
            self._prepare_tiles()
            # Rows stay in L2 while the weights of all groups pass.
            self.group, chunk = T.bind(task % matmul.groups), T.bind(task // matmul.groups)
            blocks = T.bind(T.ceildiv(self.rows, BLOCK))
            share = T.bind(T.ceildiv(blocks, matmul.chunks))
            own = T.bind(T.max(T.min(share, blocks - chunk * share), 0))
            with T.serial(0, T.ceildiv(own, matmul.sweep)) as sweep:
                self._emit_sweep(T.bind(chunk * share + sweep * matmul.sweep), own - sweep * matmul.sweep)
            release_tiles()

    def _prepare_tiles(self) -> None:
        """Allocate the scratch memory and configure the tiles."""
        matmul = self.matmul
        slots = matmul.sweep * matmul.panels if len(matmul.stretches) > 1 else 1
        self.sums = allocate_scratch((slots, 2, TILE, BLOCK), "float32")
        configuration = allocate_scratch((64,), "uint8")
        # The ends of rows whose depth is no multiple of a step, with zeros behind them.
        self.tails = allocate_scratch((2, TILE, STEP), "uint16") if matmul.tail else None
        if self.tails is not None:
            with T.grid(2, TILE) as (half, r):
                T.buffer_store(self.tails, T.broadcast(T.uint16(0), STEP), [half, r, ramp(0, STEP)])
        self.height = T.bind(T.min(self.rows, TILE))
        configure_tiles(configuration, self.height)

    def _emit_sweep(self, first: Expr, left: Expr) -> None:
        """All panels and stretches of at most SWEEP blocks of rows, `first` being the number of their first block."""
        panels, keeps_sums = self.matmul.panels, len(self.matmul.stretches) > 1
        count = T.bind(T.min(left, self.matmul.sweep))
        lines = T.bind(T.ceildiv(2 * TILE, count))  # of the 64-byte lines of a step's weights: what each block fetches

        def block(nth: Expr) -> Block:
            first_row = T.bind((first + nth // panels) * BLOCK)
            return Block(T.bind(self.group * panels + nth % panels), first_row, nth if keeps_sums else 0)

        for begin in self.matmul.stretches:
            with T.serial(0, count * panels) as nth:
                self._accumulate(begin, nth, block, lines)
        with T.serial(0, BLOCK) as n:
            self._finish_row(block(count * panels - 1), n)

    def _accumulate(self, begin: int, nth: Expr, block: Callable[[Expr], Block], lines: Expr) -> None:
        """One stretch of the nth block of a sweep, from step `begin` on. In the last stretch, the block before it is
        finished meanwhile."""
        matmul, current = self.matmul, block(nth)
        last, count = begin == matmul.stretches[-1], min(matmul.stretch, matmul.steps - begin)
        finished = -(-BLOCK // max(count, 1))  # rows of the block before that are finished in a step
        number = T.bind(nth // matmul.panels)
        rows = [T.bind(self._first_row(current, half)) for half in range(2)]
        if last:
            self._copy_tails(rows)
        self._load_accumulators(current, begin)
        before = block(T.max(nth - 1, 0))
        with T.serial(0, count) as at:
            k = T.bind(begin + at)
            self._multiply(current.panel, k, [T.address_of(self.X[row, k * STEP]) for row in rows], matmul.depth * 2)
            self._prefetch(current, nth, number, at, k, lines, last)
            if last:
                with when(nth > 0):
                    for i in range(finished):
                        self._finish_row(before, T.min(at * finished + i, BLOCK - 1))
        if last and not count:
            with when(nth > 0), T.serial(0, BLOCK) as n:
                self._finish_row(before, n)
        if last and self.tails is not None:
            tails = [T.address_of(self.tails[half, 0, 0]) for half in range(2)]
            self._multiply(current.panel, matmul.steps, tails, STEP * 2)
        self._store_accumulators(current)

    def _first_row(self, block: Block, half: Expr) -> Expr:
        """The first row of one of the two tiles of rows of a block; the last tile moves up to end with the rows."""
        return T.max(T.min(block.first_row + half * TILE, self.rows - TILE), 0)

    def _copy_tails(self, rows: Sequence[Expr]) -> None:
        """Copy what is behind the last whole step of a block's rows."""
        if self.tails is None:
            return
        for half, row in enumerate(rows):
            with T.grid(self.height, self.matmul.tail) as (r, k):
                value = self.X[row + r, self.matmul.steps * STEP + k]
                T.buffer_store(self.tails, value, [half, r, k])

    def _load_accumulators(self, block: Block, begin: int) -> None:
        """Zeros before the first step, else the sums of the stretch before."""
        for register in ACCUMULATORS:
            address = self._sums_address(block, register)
            if begin:
                load_tile(register, address, BLOCK * 4)
            else:
                zero_tile(register)

    def _multiply(self, panel: Expr, step: Expr, left: Sequence[Expr], stride_bytes: int) -> None:
        """One step: 32 products for each of 32 x 32 sums. `left` are the addresses of the two tiles of rows."""
        for half, address in enumerate(left):
            load_tile(LEFT + half, address, stride_bytes)
        for half in range(2):
            load_tile(RIGHT + half, T.address_of(self.W[panel, step, half, 0, 0, 0]), 64)
        for register in ACCUMULATORS:
            multiply_bf16_tiles(register, LEFT + register // 2, RIGHT + register % 2)

    def _prefetch(self, block: Block, nth: Expr, number: Expr, at: Expr, k: Expr, lines: Expr, last: bool) -> None:
        """Fetch this block's share of what the next stretch reads, or, in the last stretch, of what comes behind it.

        nth, number: the block's place among the blocks of the sweep, and among those of one panel.
        at, k: the step's place in the stretch, and in the reduction.
        """
        matmul = self.matmul
        # Weights come from memory.
        ahead = (block.panel + matmul.panels, at) if last else (block.panel, k + matmul.stretch)
        with T.serial(0, lines) as line:
            prefetch(self.W[(*ahead, 0, number * lines + line, 0, 0)])
        # So may rows; those of the next sweep lie below.
        next_k, below = (at, matmul.sweep * BLOCK) if last else (k + matmul.stretch, 0)
        for r in range(matmul.fetched_rows):
            row = block.first_row + below + nth % matmul.panels * matmul.fetched_rows + r
            prefetch(self.X[row, next_k * STEP])

    def _store_accumulators(self, block: Block) -> None:
        for register in ACCUMULATORS:
            store_tile(register, self._sums_address(block, register), BLOCK * 4)

    def _sums_address(self, block: Block, register: int) -> Expr:
        return T.address_of(self.sums[block.slot, register // 2, 0, register % 2 * TILE])

    def _finish_row(self, block: Block, n: Expr) -> None:
        """The epilogue of the nth row of a block. Where there are fewer rows, the last one is done again, which costs
        less than a branch."""
        half, r = T.bind(n // TILE), T.bind(T.min(n % TILE, self.height - 1))
        row = T.bind(self._first_row(block, half) + r)
        column = T.bind(block.panel * BLOCK)
        low, high = (
            vector_load(self.sums, block.slot, half, r, at) + vector_load(self.bias, column + at) for at in (0, LANES)
        )
        self.epilogue.store_pair(low, high, row, column)

"""Where AMX tiles find the rows of the left operand: in the input, in a copy of rows, in a copy of the image
(`image_rows`).

A position is a row of the products of a task. Tiles load 16 positions that begin a fixed distance apart, 64 bytes of
each a step. Bytes behind the end of a row meet weights of 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import allocate_scratch
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.quantised import QuantisedProductParameters
from veltair.compiler.kernels.int8.window_rows import copy_rows, copy_windows
from veltair.compiler.kernels.matmul.amx_tiles import TILE

DEPTH = 64  # 8-bit values in a tile row: the products of one step of the reduction


class Output(NamedTuple):
    """A row of sums of a register block, and the row of the output that it is.

    >>> Output(half=0, r=3, row=35, inside=None).row
    35
    """

    half: Expr  # which tile of the block
    r: Expr  # which row of the tile
    row: Expr
    inside: Expr | None  # whether there is such an output; None: there is


class TileRows(Protocol):
    """The rows of the left operand; methods emit code.

    ::

        rows.take(chunk, zero)  # in a task
        begin = rows.begin(position)
        load_tile(register, rows.address(begin, k), rows.stride)
    """

    stride: int  # bytes from one row of a tile to the next
    chunks: Expr  # tasks
    count: Expr  # positions of the task
    height: Expr  # of a tile

    def take(self, chunk: Expr, zero: Expr) -> None:
        """Begin a task. zero: the input's zero point."""

    def begin(self, position: Expr) -> Expr:
        """Where the tile begins whose first row is this position."""

    def address(self, begin: Expr, k: Expr) -> Expr:
        """Of the kth step of a tile that begins there."""

    def output(self, first: Expr, n: Expr) -> Output:
        """The nth position of the block that begins at `first`; behind the last position, that one."""


class ChunkedRows(TileRows):
    """Positions are rows of the output, `step` of them a task.

    ::

        class Rows(ChunkedRows): ...
    """

    def __init__(self, total: Expr, step: int) -> None:
        self.total, self.step, self.chunks = total, step, T.ceildiv(total, step)

    def take(self, chunk: Expr, zero: Expr) -> None:
        self.first = T.bind(chunk * self.step)
        self.count = T.bind(T.min(self.step, self.total - self.first))


class RowsInPlace(ChunkedRows):
    """Rows that fill whole steps are read where they lie; the last tile of a layer moves up and computes some twice.

    ::

        rows = RowsInPlace(x, total, step)
    """

    def __init__(self, x: Any, total: Expr, step: int) -> None:
        super().__init__(total, step)
        self.source, self.stride = x, int(x.shape[1])

    def take(self, chunk: Expr, zero: Expr) -> None:
        super().take(chunk, zero)
        self.height = T.bind(T.min(self.total, TILE))

    def begin(self, position: Expr) -> Expr:
        return T.max(T.min(self.first + position, self.total - TILE), 0)

    def address(self, begin: Expr, k: Expr) -> Expr:
        return T.address_of(self.source[begin, k * DEPTH])

    def output(self, first: Expr, n: Expr) -> Output:
        half, r = T.bind(n // TILE), T.bind(T.min(n % TILE, self.height - 1))
        return Output(half, r, T.bind(self.begin(first + half * TILE) + r), None)


class CopiedRows(ChunkedRows):
    """Rows of other lengths or at some places only, a task's rows copied to scratch memory.

    ::

        rows = CopiedRows(flatten(x), spec, total, step)
    """

    def __init__(self, source: Any, spec: LayerSpec, total: Expr, step: int) -> None:
        super().__init__(total, step)
        self.source, self.spec, self.depth = source, spec, len(spec.weights["weight"])
        self.stride = -(-self.depth // DEPTH) * DEPTH

    def take(self, chunk: Expr, zero: Expr) -> None:
        super().take(chunk, zero)
        self.height = T.int32(TILE)
        x, window = self.spec.inputs[0], self.spec.parameters_as(QuantisedProductParameters).window
        self.rows = allocate_scratch((self.step, self.stride), x.dtype)
        if window is None or window.is_point:
            copy_rows(self.source, self.rows, self.depth, self.first, self.count)
        else:
            tensors, padding = (x, self.spec.outputs[0]), T.bind(T.cast(zero, x.dtype))
            copy_windows(self.source, self.rows, padding, tensors, window, self.first, self.count)

    def begin(self, position: Expr) -> Expr:
        return position

    def address(self, begin: Expr, k: Expr) -> Expr:
        return T.address_of(self.rows[begin, k * DEPTH])

    def output(self, first: Expr, n: Expr) -> Output:
        n = T.bind(T.min(n, self.count - first - 1))
        return Output(T.bind(n // TILE), T.bind(n % TILE), T.bind(self.first + first + n), None)

"""How AMX tiles cover the outputs of a convolution: which output is which row of a tile, and where its inputs lie."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.codegen.vectors import Expr
from veltair.compiler.kernels.conv.conv_geometry import first_tap, geometry

TILE = 16  # rows of a tile: outputs
BLOCK = 32  # output channels of a block of the layout: two tiles
DEPTH = 32  # bfloat16 values in a tile row: products of one step


class Cover:
    """Stacks of `height` tiles, one below the other, over the outputs of an image. A tile's rows are

    "flat"   16 places of the haloed plane taken as one long row, a stride apart: what falls behind a row's last output
             is computed and thrown away, which costs (W + halo) / W at stride 1 instead of 16 / (W mod 16)
    "row"    16 neighbours of one output row
    "dense"  16 outputs in a row that runs on over row ends: the inputs of each step are copied into that order before
    "tall"   as "dense" where the stride is not 1, else as "flat", in one stack of four tiles instead of two
    "pairs"  as "row", the lower half of a stack one output row below the upper: 2 x 2 of them are pooled

    With at most 16 output channels, stacks of all modes have four tiles.
    """

    def __init__(self, spec: LayerSpec, mode: str) -> None:
        x, y = spec.inputs[0], spec.outputs[0]
        self.oh, self.ow, _, _, self.sh, self.sw, self.dh, self.dw = geometry(spec)
        self.top, self.left = first_tap(spec)
        self.folds = folds(spec)
        self.height = 4 if mode == "tall" or narrow(spec) else 2
        self.rows = self.height * TILE
        self.mode = mode if mode != "tall" else "dense" if self.sh * self.sw > 1 else "flat"
        self.pitch = x.physical[3]  # columns of a haloed input row
        self.finished = self.rows // (4 if mode == "pairs" else 1)  # outputs of a stack
        self.pooled = y.shape[2:]  # rows and columns of "pairs"
        self.windows = -(-min(self.ow, 2 * self.pooled[1] if mode == "pairs" else self.ow) // TILE)  # of an output row
        self.across = self.height // 2  # windows of a stack of "pairs"
        self.beside = -(-self.windows // self.across)  # stacks of "pairs" on two output rows
        count = self.oh * self.ow
        bare = all(t.physical[2:4] == (self.oh, self.ow) for t in (y, *spec.inputs[1:]))
        self.long = bare and (self.mode == "dense" or (self.mode == "flat" and x.physical[2:4] == (self.oh, self.ow)))
        self.moves = self.mode == "flat" and self.long and count >= self.rows
        places = {
            "flat": (self.oh - 1) * self.pitch + self.ow, "row": self.oh * self.windows * TILE, "dense": count,
            "pairs": self.pooled[0] * self.beside * self.rows,
        }  # fmt: skip
        self.stacks = -(-places[self.mode] // self.rows)
        self.stride_bytes = 2 * DEPTH if self.mode == "dense" else self.sw * x.block * 2

    def serves(self) -> bool:
        """Whether each stack finds an output."""
        return self.mode != "flat" or self.pitch - self.ow < self.rows

    def copied_bytes(self, spec: LayerSpec) -> int:
        """Of the inputs of one image in the order of its outputs; 0 where they are read as they lie."""
        kh, kw = spec.parameters_as(Conv2dParameters).kernel
        steps = kh * kw * spec.inputs[0].physical[1]
        return steps * self.stacks * self.rows * DEPTH * 2 if self.mode == "dense" else 0

    def _start(self, stack: Expr) -> Expr:
        """Place of a stack's first output; the last one of a long row moves up and makes some again."""
        return T.min(stack * self.rows, self.oh * self.ow - self.rows) if self.moves else stack * self.rows

    def address(self, X: Any, image: Expr, step: Expr, u: Expr, v: Expr, stack: Expr, tile: int) -> Expr:
        """First input of a tile at one step of the reduction; runs on over row ends."""
        if self.mode == "dense":
            return T.address_of(X[image, step, u, v, stack * self.rows + tile * TILE, 0])
        if self.mode == "flat":
            place = (self._start(stack) + tile * TILE) * self.sw + v * self.dw + self.left
            return T.address_of(X[image, step, u * self.dh + self.top, place, 0])
        if self.mode == "pairs":
            above = T.min(stack // self.beside * 2 + tile // self.across, self.oh - 1)
            window = T.min(stack % self.beside * self.across + tile % self.across, self.windows - 1)
        else:
            window = T.min(stack * self.height + tile, self.oh * self.windows - 1)  # a last stack repeats its last tile
            above, window = window // self.windows, window % self.windows
        row = above * self.sh + u * self.dh + self.top
        column = window * TILE * self.sw + self.left
        if self.folds:
            return T.address_of(X[image, 0, row, column, v * DEPTH])
        return T.address_of(X[image, step, row, column + v * self.dw, 0])

    def output(self, stack: Expr, n: Expr) -> tuple[list[Expr], Expr, Expr]:
        """Rows of a stack's sums, of which the greatest counts, and output row and column, of its nth output.

        Rows of tiles that are none, behind a row's end, give its last output again, or the next row's first: that
        costs less than a branch.
        """
        begin, at = T.bind(stack * self.rows), T.bind(stack * self.rows + n)
        if self.moves:
            return [n], 0, T.bind(self._start(stack) + n)
        if self.mode == "pairs":
            first = T.bind(stack % self.beside * self.across * TILE)
            column = T.bind(T.min(first // 2 + n, self.pooled[1] - 1))
            left = T.bind(column * 2 - first)
            right = T.bind(T.min(left + 1, self.ow - 1 - first))
            below = self.across * TILE
            return [left, right, left + below, right + below], T.bind(stack // self.beside), column
        if self.mode == "row":
            window = T.bind(T.min(stack * self.height + n // TILE, self.oh * self.windows - 1))
            first = T.bind(window % self.windows * TILE)
            column = T.bind(T.min(first + n % TILE, self.ow - 1))
            return [n // TILE * TILE + column - first], window // self.windows, column
        if self.long or self.mode == "dense":
            place = T.bind(T.min(at, self.oh * self.ow - 1))
            where = (0, place) if self.long else (T.bind(place // self.ow), T.bind(place % self.ow))
            return [place - begin], *where
        behind = T.bind(begin % self.pitch)
        first = T.bind(begin + T.Select(behind < self.ow, 0, self.pitch - behind))
        place = at - T.max(at % self.pitch - (self.ow - 1), 0)
        place = T.bind(T.max(T.min(place, (self.oh - 1) * self.pitch + self.ow - 1), first))
        return [place - begin], T.bind(place // self.pitch), T.bind(place % self.pitch)


def narrow(spec: LayerSpec) -> bool:
    """The output channels fill one tile."""
    return spec.outputs[0].shape[1] <= TILE


def folds(spec: LayerSpec) -> bool:
    """The input keeps all of its few channels innermost, so kernel columns fold into the reduction."""
    return spec.inputs[0].block < DEPTH

"""Register tiles of convolutions on vectors: how many outputs fit the registers, and how tiles cover the output rows.

A tile holds up to `pixels` outputs x `channels` vectors of 16 output channels. A strip is one output row, or several
where a row is shorter than a tile: each output of a tile has its own address, so tiles run on over row ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log2

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.graph.layer_spec import Activation, Point
from veltair.compiler.kernels.conv.conv_geometry import balanced_parts

UNROLL = 4  # steps of the reduction in one turn of the innermost loop
MAX_STRIP_OUTPUTS = 64  # of a strip of several rows: each of its tiles has code of its own


def registers_per_vector(features: frozenset[str]) -> int:
    """Registers that a vector of 16 floats takes.

    >>> registers_per_vector(frozenset({"avx2"}))
    2
    """
    return 1 if "avx512" in features else 2


def max_tile_outputs(channels: int, features: frozenset[str]) -> int:
    """Outputs of a tile of `channels` vectors that fit the registers beside the weights and one input.

    >>> max_tile_outputs(2, frozenset({"avx2", "avx512"}))
    14
    """
    each = registers_per_vector(features)
    return max((32 // each - 1) // (each * channels) - 1, 0)


def strip_cycles(outputs: int, pixels: int, channels: int, each: int) -> float:
    """Cycles of one step of the reduction for all outputs of a strip.

    Two products a cycle, two loads a cycle, and each sum waits for the last one: four cycles, and one more where all
    registers of a narrow machine are needed to get there. `each` counts the registers of a vector.
    """
    vectors = channels * each
    tiles = balanced_parts(outputs, pixels)
    return sum(count * max(size * vectors / 2, (size + vectors) / 2, 3.0 + each) for _, count, size in tiles)


def rows_per_strip(height: int, width: int, pixels: int, channels: int, each: int) -> int:
    """Rows of a strip: one, or the fewest that make full tiles."""
    rows = range(1, min(height, max(1, MAX_STRIP_OUTPUTS // width)) + 1) if width < 2 * each * pixels else range(1, 2)
    return min(rows, key=lambda n: (round(strip_cycles(n * width, pixels, channels, each) / (n * width), 2), n))


def rows_of_tasks(height: int, strip_rows: int, groups: int) -> Iterator[tuple[int, float]]:
    """Rows that a task may take, with a penalty each: far from five, an uneven last chunk, too few tasks."""
    for rows in sorted({min(height, -(-r // strip_rows) * strip_rows) for r in (1, 4, 7, 14, 56)}):
        chunks = -(-height // rows)
        uneven = chunks * rows / height - 1  # what the last chunk lacks
        yield rows, 0.003 * abs(log2(rows / 5)) + 0.02 * uneven + 0.1 * (chunks * groups < 2)


def promising_points(estimated: Sequence[tuple[float, Point]]) -> list[Point]:
    """Points with their estimated costs, the best first, without those that are estimated far worse.

    >>> promising_points([(2.0, {"rows": 1}), (1.0, {"rows": 4}), (1.5, {"rows": 7})])
    [{'rows': 4}, {'rows': 7}]
    """
    best = min(cost for cost, _ in estimated)
    return [point for cost, point in sorted(estimated, key=lambda pair: pair[0]) if cost < 1.6 * best]


def block_and_lane(tensor: Activation, vector: Expr) -> tuple[Expr, Expr]:
    """The block of a vector of 16 channels, and its first lane in the block."""
    vectors = tensor.block // LANES
    return (vector, 0) if vectors == 1 else (vector // vectors, vector % vectors * LANES)


@dataclass(frozen=True, slots=True)
class StripTile:
    """One tile of a strip: `count` outputs from the `first` of the strip on.

    >>> StripTile(row=2, first=0, count=3, strip_rows=2, number=0).positions(width=2)
    [(2, 0), (2, 1), (3, 0)]
    """

    row: Expr  # the first of the strip
    first: Expr
    count: int
    strip_rows: int
    number: Expr  # of the tile in its strip

    def position(self, width: int, output: Expr) -> tuple[Expr, Expr]:
        """Row and column of an output of the strip, whose rows have `width` columns."""
        return (self.row, output) if self.strip_rows == 1 else (self.row + output // width, output % width)

    def positions(self, width: int) -> list[tuple[Expr, Expr]]:
        """Row and column of each output of the tile."""
        return [self.position(width, self.first + p) for p in range(self.count)]


def for_each_tile(
    first: Expr, rows: int, size: tuple[int, int], strip_rows: int, pixels: int, emit: Callable[[StripTile], None]
) -> None:
    """Code for all tiles of up to `rows` output rows from `first` on. `size` is that of the output plane."""
    height, width = size

    def strip(row: Expr, strip_rows: int) -> None:
        done = 0
        for start, tiles, outputs in balanced_parts(strip_rows * width, pixels):
            if strip_rows == 1:
                with T.serial(0, tiles) as t:
                    emit(StripTile(row, T.bind(t * outputs + start), outputs, strip_rows, done + t))
            else:
                for t in range(tiles):
                    emit(StripTile(row, start + t * outputs, outputs, strip_rows, done + t))
            done += tiles

    with T.serial(0, T.min(rows, height - first) // strip_rows) as s:
        strip(T.bind(first + s * strip_rows), strip_rows)
    if height % strip_rows:
        with when(first + rows >= height):
            strip(height - height % strip_rows, height % strip_rows)

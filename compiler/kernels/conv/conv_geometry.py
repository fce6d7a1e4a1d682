"""Where a convolution's outputs and taps lie, and how its algorithms divide outputs and channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.vision import Conv2dParameters

MOST_LIVE = 0.8  # of the products; where more of them read the image, asking gains nothing


class RowsColumns(NamedTuple):
    """One number for the vertical direction and one for the horizontal.

    >>> RowsColumns(rows=3, columns=1).rows
    3
    """

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """Extents of a convolution and where its taps lie in the haloed input.

    >>> one = RowsColumns(1, 1)
    >>> ConvGeometry(RowsColumns(7, 7), RowsColumns(3, 3), RowsColumns(2, 2), one, one).input_position(0, 3, 2, 0)
    (3, 7)
    """

    output: RowsColumns  # before any pooling
    kernel: RowsColumns
    stride: RowsColumns
    dilation: RowsColumns
    first_tap: RowsColumns  # where in the haloed input the first tap of output (0, 0) lies

    @classmethod
    def of_layer(cls, spec: LayerSpec) -> ConvGeometry:
        conv, halo = spec.parameters_as(Conv2dParameters), spec.inputs[0].halo
        top, left = conv.pads[:2]
        oh, ow = conv.pooled or spec.outputs[0].shape[2:]
        return cls(
            RowsColumns(oh, ow),
            RowsColumns(*conv.kernel),
            RowsColumns(*conv.strides),
            RowsColumns(*conv.dilations),
            RowsColumns(halo.top - top, halo.left - left),
        )

    def input_position(self, row: Expr, column: Expr, u: Expr, v: Expr) -> tuple[Expr, Expr]:
        """Row and column, in the haloed input, of tap (u, v) of output (row, column)."""
        return (
            row * self.stride.rows + u * self.dilation.rows + self.first_tap.rows,
            column * self.stride.columns + v * self.dilation.columns + self.first_tap.columns,
        )


def live_share(spec: LayerSpec) -> float:
    """The part of a convolution's products that read the image: the others read padding."""
    conv, geometry = spec.parameters_as(Conv2dParameters), ConvGeometry.of_layer(spec)
    share = 1.0
    for axis, extent in enumerate(spec.inputs[0].shape[2:]):
        starts = [output * geometry.stride[axis] - conv.pads[axis] for output in range(geometry.output[axis])]
        reads = [start + tap * geometry.dilation[axis] for start in starts for tap in range(geometry.kernel[axis])]
        share *= sum(0 <= place < extent for place in reads) / len(reads)
    return share


def skips_padding(spec: LayerSpec) -> bool:
    """Whether direct convolution asks of each tap and tile whether they meet the image: of wide dilated filters."""
    conv = spec.parameters_as(Conv2dParameters)
    return conv.pooled is None and max(conv.dilations) > 1 and live_share(spec) < MOST_LIVE


def balanced_parts(total: int, most: int) -> list[tuple[int, int, int]]:
    """`total` in parts of at most `most` whose sizes differ by at most one, larger parts first.

    Equal parts come together, as (start, how many parts, their size).

    >>> balanced_parts(10, 4)
    [(0, 1, 4), (4, 2, 3)]
    """
    parts = -(-total // most)
    small, larger = divmod(total, parts)
    found = [(0, larger, small + 1), (larger * (small + 1), parts - larger, small)]
    return [(start, count, size) for start, count, size in found if count]


def fitting_group_sizes(blocks: int, sizes: Sequence[int], most: int = 2) -> list[int]:
    """The first `most` sizes of a group of output blocks that leave at most a tenth of all groups empty.

    >>> fitting_group_sizes(6, [4, 2, 3, 1])
    [2, 3]
    """
    return [size for size in sizes if -(-blocks // size) * size <= 1.1 * blocks][:most]


def chosen(place: Expr, numbers: Sequence[int]) -> Expr:
    """The number at a place; a constant where all are the same."""
    if len(set(numbers)) == 1:
        return numbers[0]
    found: Expr = T.int32(numbers[-1])
    for at in range(len(numbers) - 2, -1, -1):
        if numbers[at] != numbers[at + 1]:
            found = T.Select(place <= at, T.int32(numbers[at]), found)
    return T.bind(found)


@contextmanager
def where_present(blocks: int, size: int, group: Expr, member: int) -> Iterator[None]:
    """Code for one member of a group of output blocks, left out where the last group has no such member."""
    if blocks % size and member >= blocks % size:
        with when(group < blocks // size):
            yield
    else:
        yield

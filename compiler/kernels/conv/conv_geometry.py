"""Where a convolution's outputs and taps lie, and what its algorithms share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Halo, LayerSpec
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.vectors import Expr


def geometry(spec: LayerSpec) -> tuple[int, int, int, int, int, int, int, int]:
    """Output rows, columns (before any pooling), kernel rows, columns, stride and dilation (each vertical,
    horizontal)."""
    conv = spec.parameters_as(Conv2dParameters)
    oh, ow = conv.pooled or spec.outputs[0].shape[2:]
    return (oh, ow, *conv.kernel, *conv.strides, *conv.dilations)


def first_tap(spec: LayerSpec) -> tuple[int, int]:
    """Where in the haloed input the first tap of output (0, 0) lies."""
    halo: Halo = spec.inputs[0].halo
    top, left = spec.parameters_as(Conv2dParameters).pads[:2]
    return halo.top - top, halo.left - left


def reach(spec: LayerSpec, width: int) -> tuple[NDArray[np.float32], int, Callable[[Expr], Expr]]:
    """What `width` neighbouring output channels read, of a convolution in groups: as many blocks of input channels, and
    a function that gives the first of them for the nth such output channels. Between the groups lie zeros.

    The weights are (OC, blocks * b, KH, KW); all input blocks where there are no groups.
    """
    weight, x, count = spec.weights["weight"], spec.inputs[0], spec.parameters_as(Conv2dParameters).groups
    blocks = -(-x.shape[1] // x.block)
    if count == 1:
        return weight, blocks, lambda nth: 0
    oc, each_in = weight.shape[:2]
    each_out = oc // count
    ends = [
        (
            n * width // each_out * each_in // x.block,
            -(-((min(n * width + width, oc) - 1) // each_out + 1) * each_in // x.block),
        )
        for n in range(-(-oc // width))
    ]
    taken = max(end - start for start, end in ends)
    firsts = [min(start, blocks - taken) for start, _ in ends]
    wide = np.zeros((oc, taken * x.block, *weight.shape[2:]), np.float32)
    for channel in range(oc):
        start = channel // each_out * each_in - firsts[channel // width] * x.block
        wide[channel, start : start + each_in] = weight[channel]
    if taken == blocks:
        return wide, taken, lambda nth: 0
    return wide, taken, lambda nth: T.min(nth * width // each_out * each_in // x.block, blocks - taken)


def folded(spec: LayerSpec, weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """(OC, IC, KH, KW) -> (OC, KH, KW * IC), KW with the gaps of its dilation: with all channels innermost, the inputs
    of a kernel row lie side by side."""
    oc, ic, kh, kw = weight.shape
    gap = spec.parameters_as(Conv2dParameters).dilations[1]
    spread = np.zeros((oc, kh, (kw - 1) * gap + 1, ic), np.float32)
    spread[:, :, ::gap] = weight.transpose(0, 2, 3, 1)  # what lies between two taps counts for nothing
    return spread.reshape(oc, kh, -1)


def balanced(total: int, most: int) -> list[tuple[int, int, int]]:
    """`total` in parts of at most `most` that differ by at most one: (start, how many parts, their size), larger
    parts first."""
    parts = -(-total // most)
    small, larger = divmod(total, parts)
    found = [(0, larger, small + 1), (larger * (small + 1), parts - larger, small)]
    return [(start, count, size) for start, count, size in found if count]


def group_sizes(blocks: int, sizes: Sequence[int], most: int = 2) -> list[int]:
    """Sizes of a group of output blocks that leave little of the last group empty, at most `most`, as they come."""
    return [size for size in sizes if -(-blocks // size) * size <= 1.1 * blocks][:most]


@contextmanager
def where_present(blocks: int, size: int, group: Expr, member: int) -> Iterator[None]:
    """Code for one member of a group of output blocks, left out where the last group has no such member."""
    if blocks % size and member >= blocks % size:
        with when(group < blocks // size):
            yield
    else:
        yield

"""Weights of convolutions in the shapes that several kernels pack them from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.vision import Conv2dParameters, Windows

BF16_BLOCK = 32  # channels of a block of a bfloat16 activation


@dataclass(frozen=True, slots=True)
class InputRange:
    """The blocks of input channels that `width` neighbouring output channels of a grouped convolution read.

    All ranges have the same number of blocks, and there are zeros for what lies between the groups. Where there are
    no groups, a range is all of the input::

        reads = input_range(spec, 32)
        reads.weight  # (OC, blocks * b, KH, KW)
        reads.first_block(n)  # of output channels n * 32 …
    """

    weight: NDArray[np.float32]  # (OC, blocks * b, KH, KW)
    blocks: int
    first_block: Callable[[Expr], Expr]


def in_windows(weight: NDArray[Any], windows: Windows) -> NDArray[Any]:
    """The taps (OC, IC, rows, columns) that each share of the channels reads, from the first on; zeros behind them."""
    if not windows:
        return weight
    rows, columns = (max(window[axis] for window in windows) for axis in (2, 3))
    found = np.zeros((*weight.shape[:2], rows, columns), weight.dtype)
    parts = zip(np.split(found, len(windows)), np.split(weight, len(windows)), windows, strict=True)
    for part, given, (row, column, height, width) in parts:
        part[:, :, :height, :width] = given[:, :, row : row + height, column : column + width]
    return found


def input_range(spec: LayerSpec, width: int) -> InputRange:
    """What `width` neighbouring output channels of a convolution read."""
    weight, x = spec.weights["weight"], spec.inputs[0]
    count = spec.parameters_as(Conv2dParameters).groups
    blocks = -(-x.shape[1] // x.block)
    if count == 1:
        return InputRange(weight, blocks, lambda nth: 0)
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
        return InputRange(wide, taken, lambda nth: 0)
    return InputRange(wide, taken, lambda nth: T.min(nth * width // each_out * each_in // x.block, blocks - taken))


def folds_columns(spec: LayerSpec) -> bool:
    """Whether the kernel columns of a bfloat16 convolution fold into the reduction: its input keeps all of its few
    channels innermost."""
    return spec.inputs[0].block < BF16_BLOCK


def fold_columns(spec: LayerSpec, weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """(OC, IC, KH, KW) -> (OC, KH, KW * IC), KW with the gaps of its dilation.

    With all channels innermost, the inputs of a kernel row lie side by side.
    """
    oc, ic, kh, kw = weight.shape
    gap = spec.parameters_as(Conv2dParameters).dilations[1]
    spread = np.zeros((oc, kh, (kw - 1) * gap + 1, ic), np.float32)
    spread[:, :, ::gap] = weight.transpose(0, 2, 3, 1)  # what lies between two taps counts for nothing
    return spread.reshape(oc, kh, -1)

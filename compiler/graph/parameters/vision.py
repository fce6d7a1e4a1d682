"""Parameters of the layers on blocked feature maps: convolutions, pools, element-wise chains and normalisations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from veltair.compiler.graph.parameters.base import LayerParameters

Windows: TypeAlias = tuple[tuple[int, int, int, int], ...]  # of taps: first row, first column, rows, columns


@dataclass(frozen=True, slots=True)
class Conv2dParameters(LayerParameters):
    """Parameters of "conv2d", "conv2d_bf16" and "depthwise_conv2d".

    >>> Conv2dParameters((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "relu").terms()["kernel"]
    (3, 3)
    """

    kernel: tuple[int, int]  # rows, columns
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, ...]  # top, left, bottom, right
    activation: str  # as `codegen.activation.apply_activation` names it
    groups: int = 1  # a depthwise convolution leaves it at 1
    shuffled: bool = False  # output channels are stored after a channel shuffle: the first ones of all groups, …
    pooled: tuple[int, int] | None = None  # rows and columns before a maximum pool over 2 x 2, where one is part of it
    windows: Windows = ()  # of equal shares of the output channels: the taps that are other than zero; all, if empty


def window_share(windows: Windows, kernel: tuple[int, int]) -> float:
    """The part of the taps that lie in windows.

    >>> window_share(((0, 0, 2, 2), (0, 1, 2, 2)), (2, 4)), window_share((), (3, 3))
    (0.5, 1.0)
    """
    if not windows:
        return 1.0
    return sum(rows * columns for _, _, rows, columns in windows) / (len(windows) * kernel[0] * kernel[1])


class PoolKind(StrEnum):
    """What a pool takes of a window."""

    MAXIMUM = "max"
    AVERAGE = "avg"


@dataclass(frozen=True, slots=True)
class Pool2dParameters(LayerParameters):
    """Parameters of "pool2d".

    >>> str(Pool2dParameters((2, 2), (2, 2), (0, 0, 0, 0), PoolKind.MAXIMUM, 0).terms()["kind"])
    'max'
    """

    kernel: tuple[int, int]  # rows, columns
    strides: tuple[int, int]
    pads: tuple[int, ...]  # top, left, bottom, right
    kind: PoolKind
    count_include_pad: int  # 1: an average divides by the padding's elements too


@dataclass(frozen=True, slots=True)
class SqueezeExciteParameters(LayerParameters):
    """Parameters of "squeeze_excite": three activation functions, and the width of the hidden layer.

    >>> SqueezeExciteParameters("relu", "sigmoid", "none", 8).squeezed
    8
    """

    hidden: str
    gate: str
    activation: str
    squeezed: int


@dataclass(frozen=True, slots=True)
class ElementwiseParameters(LayerParameters):
    """Parameters of "elementwise": the steps of the chain, applied to the first input in order.

    A step is "add:i" or "mul:i" with input i, "affine" (the weights scale and shift), or an activation function.

    >>> ElementwiseParameters(("add:1", "relu")).terms()
    {'steps': ('add:1', 'relu')}
    """

    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LrnParameters(LayerParameters):
    """Parameters of "lrn", local response normalisation: its `size` counts channels, its exponent is 0.75.

    >>> LrnParameters(5, 1e-4, 1.0).size
    5
    """

    size: int
    alpha: float
    bias: float


@dataclass(frozen=True, slots=True)
class GroupNormParameters(LayerParameters):
    """Parameters of "group_norm". As many groups as channels make it an instance normalisation.

    >>> GroupNormParameters(32, 1e-5, "gated-sigmoid").groups
    32
    """

    groups: int
    epsilon: float
    activation: str  # as `codegen.activation.apply_activation` names it


@dataclass(frozen=True, slots=True)
class ResizeParameters(LayerParameters):
    """Parameters of "resize".

    >>> ResizeParameters("relu").terms()
    {'activation': 'relu'}
    """

    activation: str  # as `codegen.activation.apply_activation` names it


@dataclass(frozen=True, slots=True)
class L2NormalizeParameters(LayerParameters):
    """Parameters of "l2_normalize".

    >>> L2NormalizeParameters(1e-10).terms()
    {'least': 1e-10}
    """

    least: float  # lengths below it count as it

"""Parameters of the layers on 8-bit integers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from veltair.compiler.graph.parameters.base import LayerParameters


class Addend(StrEnum):
    """What is added to a product behind its own bias and activation."""

    NONE = "none"
    BIAS = "bias"  # one number a column, the weight "added"
    RESIDUAL = "residual"  # the last input, quantised


@dataclass(frozen=True, slots=True)
class Window:
    """Where the taps of a convolution lie.

    >>> Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)).is_point
    False
    """

    kernel: tuple[int, int]  # rows, columns
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, ...]  # top, left, bottom, right

    @property
    def is_point(self) -> bool:
        """Whether every output is made of the input at the same place."""
        return (self.kernel, self.strides) == ((1, 1), (1, 1)) and not any(self.pads)


class IntegerParameters(LayerParameters):
    """Base of the parameters of layers on 8-bit integers."""

    __slots__ = ()

    @property
    def note(self) -> str:
        return "8-bit integers"


@dataclass(frozen=True, slots=True)
class QuantisedProductParameters(IntegerParameters):
    """Parameters of "matmul_int8", "conv2d_int8" and "depthwise_int8".

    last(quantise(first(scale * (x @ weight) + bias)) + addend), quantised where the output is of 8 bits. Scales and
    zero points are weights, so that layers of one shape share their code.

    >>> QuantisedProductParameters("relu").terms()
    {'first': 'relu'}
    """

    first: str  # activation behind the bias, as `codegen.activation.apply_activation` names it
    window: Window | None = None  # of a convolution
    addend: Addend = Addend.NONE
    between: str = ""  # the type that the result is rounded to before the addend; empty: it is not
    last: str = "none"  # activation behind the addend
    dynamic: bool = False  # the second and third input are scale and zero point of the first
    groups: int = 1  # of a convolution: columns read the channels of their group alone
    wide: bool = False  # whether weights need 9 bits without their zero points: they are int16, within 8 bits of those
    whole_bias: bool = False  # whether the bias is whole steps of the sums, which begin with it
    saturates: bool = False  # whether the output's type is all that bounds the result, which int32 has room for


@dataclass(frozen=True, slots=True)
class QuantisedPoolParameters(IntegerParameters):
    """Parameters of "max_pool_int8": the greatest of a window, over taps inside the image.

    >>> QuantisedPoolParameters(Window((2, 2), (2, 2), (1, 1), (0, 0, 0, 0))).note
    '8-bit integers'
    """

    window: Window


@dataclass(frozen=True, slots=True)
class StepPairParameters(IntegerParameters):
    """Parameters of "pair_int8": activation(left operator right), rounded to steps.

    >>> StepPairParameters("add", "relu").terms()
    {'operator': 'add', 'activation': 'relu'}
    """

    operator: str  # "add" or "mul"
    activation: str = "none"  # one of bounds: none, relu or clip


@dataclass(frozen=True, slots=True)
class ReorderParameters(IntegerParameters):
    """Parameters of the layers where 8-bit integers begin and end: "quantise", "dynamic_quantise", "dequantise" and
    "reorder"; and of those that change steps one by one or put them elsewhere.

    >>> ReorderParameters().terms()
    {}
    """

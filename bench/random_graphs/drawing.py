"""How random applications of ONNX's operators are drawn: each function draws one on the values that a graph has.

A function returns nodes, the last of which gives the result, or None where no value fits. Attributes and extents are
drawn small and odd, because kernels have their edges there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper


class Values(Protocol):
    """What the functions see of a graph."""

    rng: np.random.Generator

    def pick(self, *, rank: tuple[int, int] = (1, 6), kind: str = "f", least: int = 1) -> str | None:
        """A value of a rank within `rank` (both included), whose axes from the second on have at least `least`."""

    def shape(self, name: str) -> list[int]:
        """Its extents at the smaller batch size."""

    def fixed(self, name: str, axis: int) -> bool:
        """Whether an axis has the same extent at every batch size."""

    def constant(self, array: NDArray[np.generic]) -> str: ...

    def fresh(self) -> str:
        """A name that no value has."""


T = TypeVar("T")
Draw = Callable[[Values], list[NodeProto] | None]
OPERATORS: list[Draw] = []


def draws(function: Draw) -> Draw:
    """Enter a function among the operators."""
    OPERATORS.append(function)
    return function


def weights(v: Values, *shape: int, scale: float | None = None) -> str:
    fan = float(np.prod(shape[1:])) if len(shape) > 1 else 4.0
    return v.constant((v.rng.standard_normal(shape) * (scale or fan**-0.5)).astype(np.float32))


def ints(v: Values, *numbers: int) -> str:
    return v.constant(np.array(numbers, np.int64))


def node(v: Values, op: str, *inputs: str, **attributes: object) -> NodeProto:
    kept = {key: value for key, value in attributes.items() if value is not None}
    return helper.make_node(op, list(inputs), [v.fresh()], **kept)


def last(nodes: list[NodeProto]) -> str:
    return nodes[-1].output[0]


def chance(v: Values, part: float) -> bool:
    return bool(v.rng.random() < part)


def one_of(v: Values, *options: T) -> T:
    return options[int(v.rng.integers(len(options)))]


def number(v: Values, low: int, high: int) -> int:
    """Both ends included."""
    return int(v.rng.integers(low, high + 1))


def fixed_axis(v: Values, name: str, first: int = 0) -> int | None:
    axes = [axis for axis in range(first, len(v.shape(name))) if v.fixed(name, axis)]
    return one_of(v, *axes) if axes else None


def fixed_behind(v: Values, name: str) -> bool:
    """Whether all axes but the first are fixed."""
    return all(v.fixed(name, axis) for axis in range(1, len(v.shape(name))))


def signed(v: Values, axis: int, rank: int) -> int:
    """The axis, or the same counted from the end."""
    return axis - rank if chance(v, 0.5) else axis


ACTIVATIONS = "Relu Sigmoid Tanh HardSwish LeakyRelu Elu Softplus Erf"

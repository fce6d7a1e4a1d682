"""Constants of 8 bits as kernels multiply by them: steps less their zero points, and groups of channels joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.codegen.int8_dot_product import QUAD
from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.patterns.quantised.quantum import centred_steps

MOST_JOINED = 32  # groups: the products of a column grow by this factor, and so do its weights


@dataclass(frozen=True, slots=True)
class IntegerWeight:
    """Values are steps * scale. `zero`: where steps need 9 bits, what is to be taken from them so that int8 holds them.

    >>> IntegerWeight(np.ones((2, 3), np.int8), np.ones(1, np.float32), None, 0).for_columns(1, 3).steps.dtype
    dtype('int8')
    """

    steps: NDArray[Any]  # int8, or int16 where these need 9 bits
    scale: NDArray[np.float32]  # one, or one of each place of the axis
    zero: NDArray[np.int32] | None  # likewise
    axis: int

    def for_columns(self, axis: int, columns: int) -> IntegerWeight | None:
        """The weight with a zero point of each column; None where it has several of another axis than that."""
        several = self.scale.size > 1 or (self.zero is not None and self.zero.size > 1)
        if several and self.axis != axis:
            return None
        zero = None if self.zero is None else np.broadcast_to(self.zero, columns).copy()
        return IntegerWeight(self.steps, self.scale, zero, axis)


def centred_weight(steps: NDArray[Any], zero: NDArray[Any], scale: NDArray[np.float32], axis: int) -> IntegerWeight:
    """The weight of steps of 8 bits with zero points: one, or one of each place of the axis."""
    shaped = zero.reshape(zero.shape + (1,) * (steps.ndim - 1 - axis)) if zero.size > 1 else zero
    centred = centred_steps(steps, shaped)
    if centred.dtype == np.int8:
        return IntegerWeight(centred, scale, None, axis)
    middle = 128 if steps.dtype == np.uint8 else 0
    return IntegerWeight(centred, scale, middle - zero.reshape(-1).astype(np.int32), axis)


def integer_weight(name: str, view: ModelView) -> IntegerWeight | None:
    """The weight that a constant of the file is, which DequantizeLinear makes floats of."""
    constant = view.model.quantised.get(name)
    if constant is None or name not in view.constants:
        return None
    if constant.zero.size > 1 and constant.zero.size != constant.steps.shape[constant.axis]:
        return None
    return centred_weight(constant.steps, constant.zero, constant.scale, constant.axis)


def join_groups(weight: NDArray[Any], groups: int) -> tuple[NDArray[Any], int] | None:
    """Rows (taps x channels of a group, output channels) of the weights (output channels, channels of a group, rows,
    columns) of a convolution, and its groups; None where too many would have to be joined.

    Several groups are joined where a vector of columns or a step of the reduction needs it: a column has zeros for the
    channels of its neighbours. Of the ways to do so the one with the fewest products is taken.

    >>> rows, groups = join_groups(np.ones((32, 4, 3, 3), np.int8), 8)
    >>> rows.shape, groups, int(rows[:16, 0].sum())
    ((144, 32), 2, 4)
    >>> join_groups(np.ones((37, 2, 3, 3), np.int8), 37) is None
    True
    """
    columns, each, kh, kw = weight.shape
    out = columns // groups

    def is_whole(joined: int) -> bool:
        return joined == groups or not (joined * out % LANES or joined * each % QUAD)

    def products(joined: int) -> int:
        return int(groups // joined * (joined * each) * -(-joined * out // LANES))

    most = min(groups, MOST_JOINED)
    joined = min((n for n in range(1, most + 1) if groups % n == 0 and is_whole(n)), key=products, default=0)
    if not joined:
        return None
    rows = np.zeros((kh * kw, joined, each, columns), weight.dtype)
    for column in range(columns):
        rows[:, column // out % joined, :, column] = weight[column].reshape(each, -1).T
    return rows.reshape(-1, columns), groups // joined

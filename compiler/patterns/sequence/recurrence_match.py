"""A recurrence as the patterns find it, whichever way a file spells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.sequence import Cell, Direction, ResetPosition, SequenceOrder
from veltair.compiler.onnx.folding.row_numbers import ROWS


@dataclass(frozen=True, slots=True)
class RecurrenceMatch:
    """A recurrent cell over a sequence, as GRU, LSTM, RNN or Scan express it.

    >>> order, reset = SequenceOrder.STEPS_FIRST, ResetPosition.BEFORE_PRODUCT
    >>> RecurrenceMatch("x", order, reset, weights={}, last="h").states_axes
    ('rows', 'steps', 'hidden')
    """

    x: str
    order: SequenceOrder  # of x
    reset: ResetPosition
    weights: Mapping[str, NDArray[np.float32]]  # as `kernels/recurrent` reads them
    cell: Cell = Cell.GRU
    direction: Direction = Direction.FORWARD
    activations: tuple[str, str, str] = ("sigmoid", "tanh", "tanh")
    scores: str = ""
    initial: str = ""  # "" where it is zero; likewise the next
    initial_cell: str = ""
    lengths: str = ""
    states: tuple[str, ...] = ()  # outputs that hold the states of all steps
    last: str = ""
    last_cell: str = ""
    states_axes: tuple[str, ...] = ("rows", "steps", "hidden")  # of the states; "directions" may be one of them
    inner: tuple[onnx.NodeProto, ...] = ()  # nodes that need no layer of their own


def is_read(name: str, view: ModelView) -> bool:
    return bool(name) and (name in view.output_names or bool(view.users_of(name)))


def initial_state(name: str, view: ModelView) -> str:
    """The initial state, "" for zeros: of a constant, or of rows of one that are as many as the batch."""
    maker, value = view.makers.get(name), view.constants.get(name)
    if maker is not None and maker.op_type == ROWS:
        value = view.constants[maker.input[0]]
    return "" if value is not None and not value.any() else name

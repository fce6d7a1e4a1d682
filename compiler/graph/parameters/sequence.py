"""Parameters of layers on sequences: attention, recurrent units, layer normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from veltair.compiler.graph.parameters.base import LayerParameters


@dataclass(frozen=True, slots=True)
class AttentionParameters(LayerParameters):
    """Parameters of "attention": softmax(Q K^T * scale [+ mask]) V of all heads.

    >>> AttentionParameters(12, 64, 384, 384, 0.125, ((0, 0), (0, 768), (0, 1536)), masked=True).heads
    12
    """

    heads: int
    width: int  # of a head
    tokens: int  # queries of an image
    keys: int
    scale: float
    places: tuple[tuple[int, int], ...]  # of Q, K and V: which input, and its first column
    masked: bool  # the last input, or the weight "mask", is added to the scores


class SequenceOrder(StrEnum):
    """Which axis of a sequence tensor comes first in memory."""

    ROWS_FIRST = "rows"  # (rows, steps, width)
    STEPS_FIRST = "steps"  # (steps, rows, width)


class ResetPosition(StrEnum):
    """Where the reset gate of a gated recurrent unit applies: before or after the product with the state."""

    BEFORE_PRODUCT = "before"
    AFTER_PRODUCT = "after"


@dataclass(frozen=True, slots=True)
class RecurrentParameters(LayerParameters):
    """Parameters of "recurrent", a gated recurrent unit over all steps.

    >>> order = SequenceOrder.ROWS_FIRST
    >>> RecurrentParameters(("x",), ("last",), order, order, ResetPosition.BEFORE_PRODUCT).writes
    ('last',)
    """

    reads: tuple[str, ...]  # the inputs in order: "x", then "scores", "initial", "lengths" where there are any
    writes: tuple[str, ...]  # the outputs in order: "states", "last"
    x_order: SequenceOrder  # of x and of the scores
    y_order: SequenceOrder  # of the states
    reset: ResetPosition


@dataclass(frozen=True, slots=True)
class LayerNormParameters(LayerParameters):
    """Parameters of "layer_norm", and of "embedding", which ends in one.

    >>> LayerNormParameters(1e-5).terms()
    {'epsilon': 1e-05}
    """

    epsilon: float  # added to the variance

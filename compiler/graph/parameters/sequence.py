"""Parameters of layers on sequences: attention, recurrent cells, layer normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from veltair.compiler.graph.parameters.base import LayerParameters
from veltair.compiler.graph.parameters.products import WeightStorage


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
    group: int = 1  # heads of Q that share one of K and one of V
    heads_first: tuple[bool, bool, bool] = (False, False, False)  # of Q, K, V: (images, heads, tokens, width) as rows

    @property
    def extents(self) -> tuple[int, int, int]:
        """Tokens of an image in Q, K and V."""
        return self.tokens, self.keys, self.keys

    @property
    def heads_of_sides(self) -> tuple[int, int, int]:
        """Heads of Q, K and V."""
        return self.heads, self.heads // self.group, self.heads // self.group


class SequenceOrder(StrEnum):
    """The order of a sequence tensor's axes in memory. Both directions' states of a step lie side by side, except
    in the last order."""

    ROWS_FIRST = "rows"  # (rows, steps, width)
    STEPS_FIRST = "steps"  # (steps, rows, width)
    STEPS_THEN_DIRECTIONS = "directions"  # (steps, directions, rows, width)


class ResetPosition(StrEnum):
    """Where the reset gate of a gated recurrent unit applies: before or after the product with the state."""

    BEFORE_PRODUCT = "before"
    AFTER_PRODUCT = "after"


class Cell(StrEnum):
    """What a recurrent layer computes in a step. The gates are named in the order of the layer's weights."""

    GRU = "gru"  # reset, update, candidate
    LSTM = "lstm"  # input, output, forget, candidate
    RNN = "rnn"  # the new state alone

    @property
    def gates(self) -> int:
        """Gates of a unit, of which each has products with the inputs and with the state."""
        return {Cell.GRU: 3, Cell.LSTM: 4, Cell.RNN: 1}[self]


class Direction(StrEnum):
    """Which way a recurrent layer goes through the steps."""

    FORWARD = "forward"
    REVERSE = "reverse"
    BIDIRECTIONAL = "bidirectional"

    @property
    def extent(self) -> int:
        """Extent of the axis of directions."""
        return 2 if self is Direction.BIDIRECTIONAL else 1


@dataclass(frozen=True, slots=True)
class RecurrentParameters(LayerParameters):
    """Parameters of "recurrent", a recurrent cell over all steps.

    >>> order = SequenceOrder.ROWS_FIRST
    >>> RecurrentParameters(("x",), ("last",), order, order, ResetPosition.BEFORE_PRODUCT).writes
    ('last',)
    """

    reads: tuple[str, ...]  # the inputs in order: "x", then "scores", "initial", "initial_cell", "lengths" if any
    writes: tuple[str, ...]  # the outputs in order: "states", "last", "last_cell"
    x_order: SequenceOrder  # of x and of the scores
    y_order: SequenceOrder  # of the states
    reset: ResetPosition  # of a GRU
    cell: Cell = Cell.GRU
    direction: Direction = Direction.FORWARD
    # Functions by the names of `codegen.activation`: of the gates, of the candidate, and of an LSTM's cell state. An
    # RNN's is the second.
    activations: tuple[str, str, str] = ("sigmoid", "tanh", "tanh")


@dataclass(frozen=True, slots=True)
class ProjectedRecurrentParameters(RecurrentParameters):
    """Parameters of "projected_recurrent", which reads "sums", the products of a layer in front of it, instead of "x".

    >>> order = SequenceOrder.ROWS_FIRST
    >>> terms = ("sums",), ("last",), order, order, ResetPosition.BEFORE_PRODUCT
    >>> ProjectedRecurrentParameters(*terms, storage=WeightStorage.BF16).reads
    ('sums',)
    """

    storage: WeightStorage = WeightStorage.FP32  # with BF16 states are rounded as well before they are multiplied


@dataclass(frozen=True, slots=True)
class LayerNormParameters(LayerParameters):
    """Parameters of "layer_norm", and of "embedding", which ends in one.

    >>> LayerNormParameters(1e-5).terms()
    {'epsilon': 1e-05}
    """

    epsilon: float  # added to the variance

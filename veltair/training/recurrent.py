"""GRU, and AUGRU of DIEN, through time: one kernel for all steps forward, and one backward.

The products with the inputs of all steps are one matrix product before the steps (AtRec III-B1), and so are the
gradients of the weights behind them. The kernel has rows of the batch in the lanes of a vector.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from veltair.errors import DataError
from veltair.training.export import exported_states, exporting
from veltair.training.native_calls import RecurrentCall, address, call_kernel, check_real, check_shape, lanes

KEPT = 5  # values of each unit and step that the gradient needs: KEPT_… in native/recurrent_kernels.h
MOST_UNITS = 4096  # a task's states of one step are on its thread's stack


def _call(gates: Tensor, scores: Tensor | None, hidden: int, reset_after: bool) -> RecurrentCall:
    rows, steps, _ = gates.shape
    tiles = -(-rows // lanes(gates.dtype))
    call = RecurrentCall(rows=rows, steps=steps, hidden=hidden, reset_after=reset_after, tiles=tiles)
    call.threads, call.scores = torch.get_num_threads(), address(scores)
    return call


@torch.library.custom_op("veltair::recurrent", mutates_args=(), device_types="cpu")
def _recurrent(
    gates: Tensor, first: Tensor, weights: Tensor, bias: Tensor | None, scores: Tensor | None, reset_after: bool
) -> tuple[Tensor, Tensor]:
    gates, first, weights = gates.contiguous(), first.contiguous(), weights.contiguous()
    bias = None if bias is None else bias.contiguous()
    scores = None if scores is None else scores.contiguous()
    rows, steps, hidden = gates.shape[0], gates.shape[1], first.shape[1]
    call = _call(gates, scores, hidden, reset_after)
    states = gates.new_empty(rows, steps, hidden)
    kept = gates.new_empty(call.tiles, steps, KEPT * hidden, lanes(gates.dtype))
    call.gates, call.first, call.weights = address(gates), address(first), address(weights)
    call.bias, call.states, call.kept = address(bias), address(states), address(kept)
    call_kernel("recurrent_forward", call, gates.dtype)
    return states, kept


@torch.library.custom_op("veltair::recurrent_backward", mutates_args=(), device_types="cpu")
def _recurrent_gradient(
    given: Tensor, kept: Tensor, weights: Tensor, scores: Tensor | None, reset_after: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given, kept, turned = given.contiguous(), kept.contiguous(), weights.t().contiguous()
    scores = None if scores is None else scores.contiguous()
    rows, steps, hidden = given.shape
    of_gates = given.new_empty(rows, steps, 3 * hidden)
    of_first, other, of_scores = _like_states(given, scores)
    call = _call(of_gates, scores, hidden, reset_after)
    call.weights, call.kept, call.states_gradient = address(turned), address(kept), address(given)
    call.gates_gradient, call.other, call.first_gradient = address(of_gates), address(other), address(of_first)
    call.scores_gradient = address(of_scores)
    call_kernel("recurrent_backward", call, given.dtype)
    return of_gates, of_first, other, of_scores


def _like_states(given: Tensor, scores: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    rows, steps, hidden = given.shape
    of_scores = given.new_empty((0,) if scores is None else (rows, steps))
    return given.new_empty(rows, hidden), given.new_empty(rows, steps, hidden), of_scores


@_recurrent.register_fake
def _(gates: Tensor, first: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    rows, steps, hidden, width = gates.shape[0], gates.shape[1], first.shape[1], lanes(gates.dtype)
    kept = gates.new_empty((rows + width - 1) // width, steps, KEPT * hidden, width)
    return gates.new_empty(rows, steps, hidden), kept


@_recurrent_gradient.register_fake
def _(
    given: Tensor, kept: Tensor, weights: Tensor, scores: Tensor | None, reset_after: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, steps, hidden = given.shape
    return given.new_empty(rows, steps, 3 * hidden), *_like_states(given, scores)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, first, weights, bias, scores, ctx.reset_after = inputs
    states, kept = output
    ctx.set_materialize_grads(False)
    ctx.has_bias, ctx.has_scores = bias is not None, scores is not None
    ctx.save_for_backward(first, weights, scores, states, kept)


def _backward(ctx: Any, given: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if given is None:
        return (None,) * 6
    first, weights, scores, states, kept = ctx.saved_tensors
    of_gates, of_first, other, of_scores = _recurrent_gradient(given, kept, weights, scores, ctx.reset_after)
    hidden = first.shape[1]
    before = torch.cat([first[:, None], states[:, :-1]], 1).reshape(-1, hidden)
    gates, candidate, other = of_gates.reshape(-1, 3 * hidden), of_gates[..., 2 * hidden :], other.reshape(-1, hidden)
    candidate = candidate.reshape(-1, hidden)
    # the candidate's product reads the state, and `other` is its gradient; or it reads `other`
    left, right = (other, before) if ctx.reset_after else (candidate, other)
    # few columns on the left: MKL takes a quarter of the time of the transposed product
    of_weights = torch.cat([before.t() @ gates[:, : 2 * hidden], right.t() @ left], 1).t()
    of_bias = torch.cat([gates[:, : 2 * hidden].sum(0), left.sum(0)]) if ctx.has_bias else None
    return of_gates, of_first, of_weights, of_bias, of_scores if ctx.has_scores else None, None


_recurrent.register_autograd(_backward, setup_context=_remember)


def gru(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    scores: Tensor | None = None,
    reset_after: bool = True,
) -> Tensor:
    """All states (batch, steps, hidden) of a GRU over x (batch, steps, inputs), float32 or float64.

    Gates are reset, update and candidate, in this order, as in `torch.nn.GRU`::

        r, u = sigmoid(W x + b + V h + d);  u = (1 - score) u;  h = u h + (1 - u) c
        c = tanh(W x + b + r (V h + d))     with reset_after, as in torch and cuDNN
        c = tanh(W x + b + V (r h) + d)     without, as in TensorFlow's GRUCell and DIEN

    Args:
        x: inputs of all steps.
        weight_ih: W (3 hidden, inputs).
        weight_hh: V (3 hidden, hidden).
        bias_ih: b (3 hidden,).
        bias_hh: d (3 hidden,).
        h0: first state (batch, hidden); zeros by default.
        scores: attention (batch, steps) that weakens the update gate; none by default.
        reset_after: whether the reset gate follows the recurrent product.

    Raises:
        DataError: shapes or types that do not fit.
    """
    if x.dim() != 3 or weight_hh.dim() != 2:
        raise DataError(f"x: expected shape [batch, steps, inputs], found {list(x.shape)}")
    rows, steps, inputs = x.shape
    hidden = weight_hh.shape[1]
    if not 0 < hidden <= MOST_UNITS:
        raise DataError(f"weight_hh: expected 1 to {MOST_UNITS} units, found {hidden}")
    h0 = x.new_zeros(rows, hidden) if h0 is None else h0
    check_real("x", x)
    for name, tensor, shape in (
        ("weight_ih", weight_ih, (3 * hidden, inputs)),
        ("weight_hh", weight_hh, (3 * hidden, hidden)),
        ("bias_ih", bias_ih, (3 * hidden,)),
        ("bias_hh", bias_hh, (3 * hidden,)),
        ("h0", h0, (rows, hidden)),
        ("scores", scores, (rows, steps)),
    ):
        if tensor is not None:
            check_real(name, tensor, x.dtype)
            check_shape(name, tensor, shape)
    gates = nn.functional.linear(x, weight_ih, bias_ih)
    states: Tensor = _recurrent(gates, h0, weight_hh, bias_hh, scores, reset_after)[0]
    return states


def augru(
    x: Tensor,
    scores: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    reset_after: bool = False,
) -> Tensor:
    """All states of a GRU whose update gate is weakened by attention scores (batch, steps) (Zhou et al. 2019, 4.3)."""
    return gru(x, weight_ih, weight_hh, bias_ih, None, h0, scores=scores, reset_after=reset_after)


class Gru(nn.Module):
    """`torch.nn.GRU` of one layer and direction, `batch_first`, with its parameters' names; see `gru`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        reset_after: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.reset_after = input_size, hidden_size, reset_after
        bound = 1 / math.sqrt(hidden_size)

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, dtype=dtype).uniform_(-bound, bound))

        self.weight_ih_l0 = uniform(3 * hidden_size, input_size)
        self.weight_hh_l0 = uniform(3 * hidden_size, hidden_size)
        self.bias_ih_l0 = uniform(3 * hidden_size) if bias else None
        self.bias_hh_l0 = uniform(3 * hidden_size) if bias else None

    def forward(self, x: Tensor, h0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """States (batch, steps, hidden) and the last one (1, batch, hidden); `h0` is shaped as the last one."""
        return self._states(x, None, h0)

    def _states(self, x: Tensor, scores: Tensor | None, h0: Tensor | None) -> tuple[Tensor, Tensor]:
        weights = self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0
        first = None if h0 is None else h0[0]
        if exporting():
            states = exported_states(x, scores, *weights, first, self.reset_after)
        else:
            states = gru(x, *weights, first, scores=scores, reset_after=self.reset_after)
        return states, states[:, -1][None]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, reset_after={self.reset_after}"


class Augru(Gru):
    """The GRU with attentional update gate of DIEN; see `augru`. Exported by `torch.onnx.export(…, dynamo=True)`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        reset_after: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, reset_after=reset_after, dtype=dtype)

    def forward(  # type: ignore[override]  # scores come second
        self, x: Tensor, scores: Tensor, h0: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same as `Gru`, with attention scores (batch, steps) of the steps."""
        return self._states(x, scores, h0)

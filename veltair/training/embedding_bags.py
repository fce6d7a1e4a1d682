"""Embedding bags: sums or means of rows of a table, with the gradient of the table or its update.

The ids of a batch are sorted in the backward pass, so that each row is read and written once, its gradient summed in
the order of the ids: duplicates are right, and results do not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from veltair.errors import DataError
from veltair.training.export import exported_bags, exporting
from veltair.training.native_calls import (
    BagCall,
    address,
    call_kernel,
    check_ids,
    check_offsets,
    check_real,
    check_shape,
    tasks_of,
)

MODES = ("sum", "mean")
NO_PADDING = -1


@dataclass(frozen=True, slots=True)
class RowWiseAdagrad:
    """Adagrad with one moment for each row of a table, as FBGEMM's `EXACT_ROWWISE_ADAGRAD`.

    `moment += mean(g**2)`, then `row -= lr * g / (sqrt(moment) + eps)`, with g a row's gradient of the whole batch.
    """

    lr: float = 0.01
    eps: float = 1e-8


def _call(table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, mean: bool, padding: int) -> BagCall:
    """What all kernels of bags are given. Raises DataError for what does not fit together."""
    check_real("weight", table)
    if table.dim() != 2 or table.shape[1] == 0:
        raise DataError(f"weight: expected shape [rows, dim], found {list(table.shape)}")
    rows, dim = table.shape
    if not NO_PADDING <= padding < rows:
        raise DataError(f"padding_idx: {padding} is no row of the table; its rows are 0 to {rows - 1}")
    if weights is not None:
        check_real("per_sample_weights", weights, table.dtype)
        check_shape("per_sample_weights", weights, tuple(ids.shape))
        if mean:
            raise DataError("per_sample_weights: expected mode 'sum', found 'mean'")
    check_ids(ids, rows, "rows of the table")
    check_offsets(offsets, ids.numel())
    bags = offsets.numel() - 1
    call = BagCall(bags=bags, ids_count=ids.numel(), rows=rows, dim=dim, padding=padding, mean=mean)
    call.threads = torch.get_num_threads()
    call.tasks = tasks_of(ids.numel() * dim, bags)
    call.ids, call.offsets, call.sample_weights = address(ids), address(offsets), address(weights)
    call.table = address(table)
    return call


def _sums(table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, mean: bool, padding: int) -> Tensor:
    table, ids, offsets = table.contiguous(), ids.contiguous(), offsets.contiguous()
    weights = None if weights is None else weights.contiguous()
    call = _call(table, ids, offsets, weights, mean, padding)
    out = table.new_empty(offsets.numel() - 1, table.shape[1])
    call.out = address(out)
    call_kernel("bag_forward", call, table.dtype)
    return out


@torch.library.custom_op("veltair::embedding_bag", mutates_args=(), device_types="cpu")
def _bag(table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, mean: bool, padding: int) -> Tensor:
    return _sums(table, ids, offsets, weights, mean, padding)


@torch.library.custom_op("veltair::embedding_bag_with_adagrad", mutates_args=(), device_types="cpu")
def _bag_with_adagrad(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    mean: bool,
    padding: int,
    moments: Tensor,
    lr: float,
    eps: float,
) -> Tensor:
    check_real("moments", moments, table.dtype)
    check_shape("moments", moments, (table.shape[0],))
    return _sums(table, ids, offsets, weights, mean, padding)


@torch.library.custom_op("veltair::embedding_bag_backward", mutates_args=(), device_types="cpu")
def _table_gradient(
    given: Tensor, table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, mean: bool, padding: int
) -> Tensor:
    found = torch.zeros_like(table, memory_format=torch.contiguous_format)
    _write_rows(given, found, ids, offsets, weights, mean, padding, None)
    return found


@torch.library.custom_op("veltair::embedding_bag_update", mutates_args=("table", "moments"), device_types="cpu")
def _update(
    given: Tensor,
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    mean: bool,
    padding: int,
    moments: Tensor,
    lr: float,
    eps: float,
) -> None:
    if not (table.is_contiguous() and moments.is_contiguous()):
        raise DataError("weight: expected a dense table, whose rows are updated where they are")
    _write_rows(given, table, ids, offsets, weights, mean, padding, (moments, lr, eps))


def _write_rows(
    given: Tensor,
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    mean: bool,
    padding: int,
    adagrad: tuple[Tensor, float, float] | None,
) -> None:
    ids, offsets, given = ids.contiguous(), offsets.contiguous(), given.contiguous()
    weights = None if weights is None else weights.contiguous()
    call = _call(table, ids, offsets, weights, mean, padding)
    check_shape("gradient", given, (offsets.numel() - 1, table.shape[1]))
    call.out = address(given)
    call.tasks = tasks_of(call.ids_count * call.dim, max(1, call.ids_count))
    if adagrad is not None:
        moments, call.rate, call.epsilon = adagrad
        call.moments = address(moments)
    call_kernel("bag_rows_backward", call, table.dtype)


@torch.library.custom_op("veltair::embedding_bag_weights_backward", mutates_args=(), device_types="cpu")
def _weights_gradient(given: Tensor, table: Tensor, ids: Tensor, offsets: Tensor, padding: int) -> Tensor:
    table, ids, offsets, given = (tensor.contiguous() for tensor in (table, ids, offsets, given))
    call = _call(table, ids, offsets, None, False, padding)
    found = table.new_empty(ids.shape)
    call.out, call.sample_gradient = address(given), address(found)
    call_kernel("bag_weights_backward", call, table.dtype)
    return found


@_bag.register_fake
@_bag_with_adagrad.register_fake
def _(table: Tensor, ids: Tensor, offsets: Tensor, *_: Any) -> Tensor:
    return table.new_empty(offsets.shape[0] - 1, table.shape[1])


@_table_gradient.register_fake
def _(given: Tensor, table: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(table, memory_format=torch.contiguous_format)


@_update.register_fake
def _(*_: Any) -> None:
    pass


@_weights_gradient.register_fake
def _(given: Tensor, table: Tensor, ids: Tensor, *_: Any) -> Tensor:
    return table.new_empty(ids.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    table, ids, offsets, weights, ctx.mean, ctx.padding, *adagrad = inputs
    ctx.save_for_backward(table, ids, offsets, weights, *adagrad[:1])
    ctx.rates = adagrad[1:]


def _backward(ctx: Any, given: Tensor) -> tuple[Any, ...]:
    table, ids, offsets, weights, *moments = ctx.saved_tensors
    of_table = of_weights = None
    if ctx.needs_input_grad[3]:
        of_weights = _weights_gradient(given, table, ids, offsets, ctx.padding)
    if moments:
        _update(given, table, ids, offsets, weights, ctx.mean, ctx.padding, moments[0], *ctx.rates)
    elif ctx.needs_input_grad[0]:
        of_table = _table_gradient(given, table, ids, offsets, weights, ctx.mean, ctx.padding)
    return (of_table, None, None, of_weights, None, None, *(None for _ in (*moments, *ctx.rates)))


_bag.register_autograd(_backward, setup_context=_remember)
_bag_with_adagrad.register_autograd(_backward, setup_context=_remember)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    *,
    mode: str = "sum",
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    optimizer: RowWiseAdagrad | None = None,
    moments: Tensor | None = None,
) -> Tensor:
    """Sums or means of rows of `weight` (rows, dim), one for each bag: (bags, dim).

    Arguments are those of `torch.nn.functional.embedding_bag`, for float32 and float64, ids and offsets of int32 or
    int64, and mode `sum` or `mean`.

    Args:
        input: ids (bags, ids of each), or (ids,) of all bags one after the other, with `offsets`.
        weight: the table.
        offsets: where each bag begins; with `include_last_offset` also where the last one ends.
        mode: `sum` or `mean`.
        per_sample_weights: a factor for each id, shaped as `input`, with mode `sum`.
        include_last_offset: whether `offsets` has one entry more than there are bags.
        padding_idx: a row that counts in no bag, and gets no gradient.
        optimizer: the backward pass updates `weight` with it, which then gets no gradient.
        moments: state (rows,) of the optimizer, which begins with zeros.

    Raises:
        DataError: an id that is no row, or offsets that do not rise from 0 to the number of ids; says where.
    """
    if mode not in MODES:
        raise DataError(f"mode: expected 'sum' or 'mean', found {mode!r}")
    if input.dim() == 2:
        if offsets is not None:
            raise DataError("offsets: expected none for ids in two dimensions")
        bags, width = input.shape
        offsets = torch.arange(bags + 1, device=input.device) * width
        if per_sample_weights is not None:
            check_shape("per_sample_weights", per_sample_weights, (bags, width))
            per_sample_weights = per_sample_weights.reshape(-1)
        input, include_last_offset = input.reshape(-1), True
    if input.dim() != 1 or offsets is None or offsets.dim() != 1 or offsets.numel() < include_last_offset:
        raise DataError("input: expected ids in two dimensions, or in one with offsets in one")
    for name, tensor in (("input", input), ("offsets", offsets)):
        if tensor.dtype not in (torch.int32, torch.int64):
            raise DataError(f"{name}: expected int32 or int64, found {tensor.dtype}")
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
        if padding_idx < 0:
            raise DataError(f"padding_idx: expected a row of a table of {weight.shape[0]}")
    input, offsets = input.long(), offsets.long()
    if not include_last_offset:
        offsets = torch.cat([offsets, offsets.new_full((1,), input.shape[0])])
    padding = NO_PADDING if padding_idx is None else padding_idx
    if optimizer is None:
        return _bag(weight, input, offsets, per_sample_weights, mode == "mean", padding)
    if moments is None:
        raise DataError("moments: expected the state of the optimizer, zeros at first")
    rates = float(optimizer.lr), float(optimizer.eps)
    return _bag_with_adagrad(weight, input, offsets, per_sample_weights, mode == "mean", padding, moments, *rates)


class EmbeddingBag(nn.Module):
    """`torch.nn.EmbeddingBag` with modes `sum` and `mean`, and, if wanted, with its optimizer in the backward pass.

    With `optimizer` the backward pass updates the rows that occur and leaves `weight.grad` as it is; state dictionaries
    then have `moments` (rows,) too. A table is updated by each call of the module: look up all ids of a step in one.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        mode: str = "sum",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        optimizer: RowWiseAdagrad | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.mode, self.include_last_offset, self.padding_idx = mode, include_last_offset, padding_idx
        self.optimizer = optimizer
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim, dtype=dtype))
        self.moments: Tensor | None
        self.register_buffer("moments", torch.zeros(num_embeddings, dtype=dtype) if optimizer else None)
        nn.init.normal_(self.weight)
        if padding_idx is not None:
            with torch.no_grad():
                self.weight[padding_idx] = 0

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """(bags, dim); see `embedding_bag`."""
        if exporting():
            return exported_bags(
                input, self.weight, offsets, per_sample_weights, self.mode, self.include_last_offset, self.padding_idx
            )
        return embedding_bag(
            input,
            self.weight,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
            optimizer=self.optimizer,
            moments=self.moments,
        )

    def extra_repr(self) -> str:
        rows, dim = self.weight.shape
        return f"{rows}, {dim}, mode={self.mode!r}, optimizer={self.optimizer}"

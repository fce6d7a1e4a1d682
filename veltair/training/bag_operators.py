"""The torch operators behind embedding bags: sums, the gradients of tables and weights, and row-wise Adagrad's update.

The ids of a batch are sorted in the backward pass, so that each row is read and written once, its gradient summed in
the order of the ids: duplicates are right, and results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from veltair.errors import DataError
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

NO_PADDING = -1


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
def sum_bags(table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, mean: bool, padding: int) -> Tensor:
    return _sums(table, ids, offsets, weights, mean, padding)


@torch.library.custom_op("veltair::embedding_bag_with_adagrad", mutates_args=(), device_types="cpu")
def sum_bags_with_adagrad(
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


@sum_bags.register_fake
@sum_bags_with_adagrad.register_fake
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


sum_bags.register_autograd(_backward, setup_context=_remember)
sum_bags_with_adagrad.register_autograd(_backward, setup_context=_remember)

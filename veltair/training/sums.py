"""Sums of one-hots, and over concatenated tensors, neither of which is written to memory (AtRec III-B)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from veltair.errors import DataError
from veltair.training.export import exporting
from veltair.training.native_calls import (
    ConcatCall,
    OneHotCall,
    address,
    call_kernel,
    check_ids,
    check_real,
    check_shape,
    tasks_of,
)


def _one_hot_call(ids: Tensor, classes: int, counts: Tensor) -> OneHotCall:
    check_real("weights", counts)
    check_ids(ids, classes, "classes", absent=True)
    samples, width = ids.shape
    call = OneHotCall(samples=samples, width=width, classes=classes, threads=torch.get_num_threads())
    call.tasks = tasks_of(samples * (width + classes), max(1, samples))
    call.ids, call.counts = address(ids), address(counts)
    return call


@torch.library.custom_op("veltair::one_hot_sum", mutates_args=(), device_types="cpu")
def _one_hot_sum(ids: Tensor, classes: int, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
    ids = ids.contiguous()
    counts = torch.empty(ids.shape[0], classes, dtype=dtype)
    call = _one_hot_call(ids, classes, counts)
    if weights is not None:
        weights = weights.contiguous()
        check_real("weights", weights, dtype)
        check_shape("weights", weights, tuple(ids.shape))
        call.weights = address(weights)
    call_kernel("one_hot_forward", call, dtype)
    return counts


@torch.library.custom_op("veltair::one_hot_sum_backward", mutates_args=(), device_types="cpu")
def _one_hot_gradient(given: Tensor, ids: Tensor) -> Tensor:
    given, ids = given.contiguous(), ids.contiguous()
    found = given.new_empty(ids.shape)
    call = _one_hot_call(ids, given.shape[1], given)
    call.gradient = address(found)
    call_kernel("one_hot_backward", call, given.dtype)
    return found


@_one_hot_sum.register_fake
def _(ids: Tensor, classes: int, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
    return torch.empty(ids.shape[0], classes, dtype=dtype)


@_one_hot_gradient.register_fake
def _(given: Tensor, ids: Tensor) -> Tensor:
    return given.new_empty(ids.shape)


def _remember_ids(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _one_hot_backward(ctx: Any, given: Tensor) -> tuple[Any, ...]:
    return None, None, _one_hot_gradient(given, *ctx.saved_tensors) if ctx.needs_input_grad[2] else None, None


_one_hot_sum.register_autograd(_one_hot_backward, setup_context=_remember_ids)


def one_hot_sum(ids: Tensor, num_classes: int, weights: Tensor | None = None) -> Tensor:
    """How often each class occurs among the ids of a sample: `one_hot(ids, num_classes).sum(-2)`, (…, num_classes).

    Args:
        ids: int32 or int64 (…, ids of a sample); -1 is no id, as in sequences of `veltair.features`.
        num_classes: columns of the result.
        weights: what each id counts, shaped as `ids`, with a gradient; 1 in float32 without.

    Raises:
        DataError: an id that is no class; says where.
    """
    if ids.dtype not in (torch.int32, torch.int64) or ids.dim() < 1:
        raise DataError(f"ids: expected int32 or int64 in one dimension or more, found {ids.dtype} {list(ids.shape)}")
    if weights is not None:
        check_shape("weights", weights, tuple(ids.shape))
    dtype = torch.float32 if weights is None else weights.dtype
    if exporting():
        found = torch.nn.functional.one_hot(ids.long().clamp(min=0), num_classes).to(dtype)
        found = found * (ids >= 0).to(dtype)[..., None]
        return (found if weights is None else found * weights[..., None]).sum(-2)
    shape, width = ids.shape[:-1], ids.shape[-1]
    flat = (math.prod(shape), width)
    counts = _one_hot_sum(
        ids.long().reshape(flat), num_classes, None if weights is None else weights.reshape(flat), dtype
    )
    return counts.reshape(*shape, num_classes)


@torch.library.custom_op("veltair::concat_sum", mutates_args=(), device_types="cpu")
def _concat_sum(parts: Sequence[Tensor], dim: int) -> Tensor:
    dense = [part.contiguous() for part in parts]
    shape = dense[0].shape
    outer, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    out = dense[0].new_empty((*shape[:dim], *shape[dim + 1 :]))
    call = ConcatCall(outer=outer, inner=inner, count=len(dense), threads=torch.get_num_threads())
    addresses = (ctypes.c_void_p * len(dense))(*map(address, dense))
    lengths = (ctypes.c_int64 * len(dense))(*(part.shape[dim] for part in dense))
    call.parts, call.lengths = ctypes.addressof(addresses), ctypes.addressof(lengths)
    call.out, call.tasks = address(out), tasks_of(sum(part.numel() for part in dense), max(1, outer))
    call_kernel("concat_forward", call, out.dtype)
    return out


@_concat_sum.register_fake
def _(parts: Sequence[Tensor], dim: int) -> Tensor:
    shape = parts[0].shape
    return parts[0].new_empty((*shape[:dim], *shape[dim + 1 :]))


def _remember_shapes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.shapes, ctx.dim = [part.shape for part in inputs[0]], inputs[1]


def _concat_backward(ctx: Any, given: Tensor) -> tuple[Any, ...]:
    spread = given.unsqueeze(ctx.dim)
    return [spread.expand(shape) for shape in ctx.shapes], None


_concat_sum.register_autograd(_concat_backward, setup_context=_remember_shapes)


def concat_sum(tensors: Sequence[Tensor], dim: int = 1) -> Tensor:
    """The sum over a dimension of concatenated tensors, `torch.cat(tensors, dim).sum(dim)`; nothing is copied.

    Raises:
        DataError: no tensors, other types than float32 or float64, or shapes that differ elsewhere than in `dim`.
    """
    if not tensors:
        raise DataError("tensors: expected at least one")
    first, rank = tensors[0], tensors[0].dim()
    if not -rank <= dim < rank:
        raise DataError(f"dim: expected one of {rank} dimensions, found {dim}")
    dim %= rank
    check_real("tensors[0]", first)
    for i, tensor in enumerate(tensors[1:], 1):
        check_real(f"tensors[{i}]", tensor, first.dtype)
        length = tensor.shape[dim] if tensor.dim() == rank else 0
        check_shape(f"tensors[{i}]", tensor, (*first.shape[:dim], length, *first.shape[dim + 1 :]))
    if exporting():
        return torch.cat(list(tensors), dim).sum(dim)
    return _concat_sum(list(tensors), dim)

"""Embedding bags: sums or means of rows of a table, with the gradient of the table or its update."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from veltair.errors import DataError
from veltair.training.bag_operators import NO_PADDING, sum_bags, sum_bags_with_adagrad
from veltair.training.export import exported_bags, exporting
from veltair.training.native_calls import check_shape

MODES = ("sum", "mean")


@dataclass(frozen=True, slots=True)
class RowWiseAdagrad:
    """Adagrad with one moment for each row of a table, as FBGEMM's `EXACT_ROWWISE_ADAGRAD`.

    `moment += mean(g**2)`, then `row -= lr * g / (sqrt(moment) + eps)`, with g a row's gradient of the whole batch.
    """

    lr: float = 0.01
    eps: float = 1e-8


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
        return sum_bags(weight, input, offsets, per_sample_weights, mode == "mean", padding)
    if moments is None:
        raise DataError("moments: expected the state of the optimizer, zeros at first")
    rates = float(optimizer.lr), float(optimizer.eps)
    return sum_bags_with_adagrad(weight, input, offsets, per_sample_weights, mode == "mean", padding, moments, *rates)


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

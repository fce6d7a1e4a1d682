"""What modules are made of while they are exported: standard operators, from which `veltair compile` reads its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._higher_order_ops import scan

from veltair.errors import ModelError


def exporting() -> bool:
    """True below `torch.onnx.export`, of either exporter, and `torch.export`."""
    return bool(torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting())


def exported_bags(
    ids: Tensor,
    table: Tensor,
    offsets: Tensor | None,
    weights: Tensor | None,
    mode: str,
    include_last_offset: bool,
    padding: int | None,
) -> Tensor:
    """`embedding_bags.embedding_bag` as torch's with offsets, and as a look-up and a sum for ids in two dimensions."""
    if ids.dim() != 2:
        return torch.nn.functional.embedding_bag(
            ids,
            table,
            offsets,
            mode=mode,
            per_sample_weights=weights,
            include_last_offset=include_last_offset,
            padding_idx=padding,
        )
    rows = torch.nn.functional.embedding(ids, table)
    if weights is not None:
        rows = rows * weights[..., None]
    if padding is None:
        return rows.sum(1) if mode == "sum" else rows.mean(1)
    counted = (ids != padding % table.shape[0]).to(rows.dtype)[..., None]
    found = (rows * counted).sum(1)
    return found if mode == "sum" else found / counted.sum(1).clamp(min=1)


def exported_states(
    x: Tensor,
    scores: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    first: Tensor | None,
    reset_after: bool,
) -> Tensor:
    """`recurrent.gru` as torch's GRU, or as a scan where torch has no operator for the cell.

    Raises ModelError in the exporter that knows no scans.
    """
    hidden = weight_hh.shape[1]
    h0 = x.new_zeros(x.shape[0], hidden) if first is None else first
    biases = [] if bias_ih is None or bias_hh is None else [bias_ih, bias_hh]
    if scores is None and reset_after:
        states: Tensor = torch.gru(
            x, h0[None], [weight_ih, weight_hh, *biases], bool(biases), 1, 0, False, False, True
        )[0]
        return states
    if not torch.compiler.is_exporting():
        raise ModelError(
            "a GRU with scores, or reset_after=False, is exported by torch.onnx.export(…, dynamo=True) alone"
        )
    linear = torch.nn.functional.linear

    def parts(tensor: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        # clones, since a scan refuses tensors that share memory
        return (None, None) if tensor is None else (tensor[: 2 * hidden].clone(), tensor[2 * hidden :].clone())

    (gate_x, candidate_x), (gate_h, candidate_h) = parts(weight_ih), parts(weight_hh)
    (gate_b, candidate_b), (gate_d, candidate_d) = parts(bias_ih), parts(bias_hh)

    def step(h: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        x = inputs[0]
        gates = torch.sigmoid(linear(x, gate_x, gate_b) + linear(h, gate_h, gate_d))
        r, u = gates[:, :hidden], gates[:, hidden:]
        of_h = r * linear(h, candidate_h, candidate_d) if reset_after else linear(r * h, candidate_h, candidate_d)
        c = torch.tanh(linear(x, candidate_x, candidate_b) + of_h)
        if len(inputs) > 1:
            u = (1 - inputs[1]) * u
        new = u * h + (1 - u) * c
        return new, new.clone()

    steps = [x.transpose(0, 1)] if scores is None else [x.transpose(0, 1), scores.transpose(0, 1)[..., None]]
    return scan(step, h0, tuple(steps))[1].transpose(0, 1)

"""DIEN (Zhou et al. 2019) at AtRec's widths, trained on operators of an engine: veltair, torch or FBGEMM.

The engines differ in the tables and their update, which is row-wise Adagrad for all, and in the recurrent layers.
FBGEMM has tables alone. torch has no AUGRU: its cell runs step after step, with the products of the inputs before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from veltair.training import Augru, EmbeddingBag, Gru, RowWiseAdagrad

DIM, HIDDEN, STEPS = 4, 8, 50
ROWS = {"users": 543_060, "items": 367_983, "categories": 1_601}  # of amz-DIEN
ENGINES = ("veltair", "torch", "fbgemm")
LR, EPS = 0.05, 1e-8
MASKED = -4294967295.0  # score before the softmax of a step without an item


class TorchTable(nn.Module):
    """Rows that get sparse gradients of torch's embedding bag."""

    def __init__(self, rows: int, dim: int, mode: str = "sum") -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, dim, mode=mode, sparse=True)
        self.moments = torch.zeros(rows)

    @property
    def weight(self) -> Tensor:
        return self.bag.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.bag(ids)

    @torch.no_grad()
    def update(self) -> None:
        """Row-wise Adagrad in torch's operators."""
        gradient = self.bag.weight.grad.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        self.moments.index_add_(0, rows, values.square().mean(1))
        self.bag.weight.index_add_(0, rows, values / (self.moments[rows].sqrt() + EPS)[:, None], alpha=-LR)
        self.bag.weight.grad = None


class FbgemmTable(nn.Module):
    """FBGEMM's operator of training, whose backward pass updates rows."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

        self.operator = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, EmbeddingLocation.HOST, ops.ComputeDevice.CPU)],
            optimizer=ops.OptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=LR,
            eps=EPS,
        )

    @property
    def weight(self) -> Tensor:
        return self.operator.split_embedding_weights()[0]

    def forward(self, ids: Tensor) -> Tensor:
        return self.operator(ids.reshape(-1), torch.arange(ids.shape[0] + 1) * ids.shape[1])


def make_table(engine: str, rows: int, dim: int) -> Any:
    """A table of an engine, called with ids (bags, ids of each): sums (bags, dim)."""
    if engine == "veltair":
        return EmbeddingBag(rows, dim, optimizer=RowWiseAdagrad(LR, EPS))
    return TorchTable(rows, dim) if engine == "torch" else FbgemmTable(rows, dim)


class StepwiseAugru(nn.Module):
    """AUGRU in torch's operators."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell = Augru(inputs, hidden)  # for its parameters

    def forward(self, x: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        cell, hidden = self.cell, self.cell.hidden_size
        gates = functional.linear(x, cell.weight_ih_l0, cell.bias_ih_l0)
        h, states = x.new_zeros(len(x), hidden), []
        (gate_h, candidate_h), (gate_b, candidate_b) = (
            (p[: 2 * hidden], p[2 * hidden :]) for p in (cell.weight_hh_l0, cell.bias_hh_l0)
        )
        for given, score in zip(gates.unbind(1), scores.unbind(1), strict=True):
            r, u = torch.sigmoid(given[:, : 2 * hidden] + functional.linear(h, gate_h, gate_b)).chunk(2, 1)
            c = torch.tanh(given[:, 2 * hidden :] + functional.linear(r * h, candidate_h, candidate_b))
            u = (1 - score[:, None]) * u
            h = u * h + (1 - u) * c
            states.append(h)
        return torch.stack(states, 1), h[None]


class Dien(nn.Module):
    """The network: user, item and category (n,), history of items and categories (n, steps) to a logit (n,)."""

    def __init__(self, engine: str, rows: Mapping[str, int]) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({f"{name}_table": make_table(engine, count, DIM) for name, count in rows.items()})
        ours = engine == "veltair"
        self.gru: Any = Gru(HIDDEN, HIDDEN) if ours else nn.GRU(HIDDEN, HIDDEN, batch_first=True)
        self.augru: Any = Augru(HIDDEN, HIDDEN) if ours else StepwiseAugru(HIDDEN, HIDDEN)
        self.query = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.PReLU())
        self.attention = nn.Sequential(
            *(nn.Linear(4 * HIDDEN, 80), nn.Sigmoid(), nn.Linear(80, 40), nn.Sigmoid(), nn.Linear(40, 1))
        )
        self.top = nn.Sequential(
            *(nn.Linear(DIM + 4 * HIDDEN, 200), nn.ReLU(), nn.Linear(200, 80), nn.ReLU(), nn.Linear(80, 1))
        )

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """(n, ids of each) to (n, ids of each, dim): bags of one id."""
        return self.tables[f"{name}_table"](ids.reshape(-1, 1)).reshape(*ids.shape, DIM)

    def forward(
        self, user: Tensor, item: Tensor, category: Tensor, history_item: Tensor, history_category: Tensor
    ) -> Tensor:
        items = torch.cat([history_item, item[:, None]], 1)  # one look-up, and so one update, for each table
        categories = torch.cat([history_category, category[:, None]], 1)
        both = torch.cat([self.rows("items", items), self.rows("categories", categories)], 2)
        seen = history_item > 0
        history, candidate = both[:, :-1] * seen[..., None], both[:, -1]
        states = self.gru(history)[0]
        query = self.query(candidate)[:, None].expand_as(states)
        scores = self.attention(torch.cat([query, states, query - states, query * states], 2))[..., 0]
        weights = torch.softmax(torch.where(seen, scores, MASKED), 1)
        interest = self.augru(history, weights)[0][:, -1]
        total = history.sum(1)
        parts = [self.rows("users", user[:, None])[:, 0], candidate, total, candidate * total, interest]
        return self.top(torch.cat(parts, 1))[:, 0]


class Trainer:
    """A network with its optimizers: Adam for dense layers, row-wise Adagrad for tables."""

    def __init__(self, engine: str, rows: Mapping[str, int] = ROWS, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.network = Dien("torch", rows)
        if engine != "torch":
            first, self.network = self.network, Dien(engine, rows)
            self._take_weights(first)
        tables = {id(p) for p in self.network.tables.parameters()}
        self.dense = torch.optim.Adam([p for p in self.network.parameters() if id(p) not in tables], 1e-2)

    @torch.no_grad()
    def _take_weights(self, first: Dien) -> None:
        for name, table in first.tables.items():
            self.network.tables[name].weight.copy_(table.weight)
        renamed = {
            name.replace("augru.cell.", "augru.") if isinstance(self.network.augru, Augru) else name: value
            for name, value in first.state_dict().items()
            if not name.startswith("tables.")
        }
        self.network.load_state_dict(renamed, strict=False)

    def step(self, batch: tuple[Tensor, ...]) -> float:
        """One step on features and clicks (n,); the loss before it."""
        *features, clicks = batch
        loss = functional.binary_cross_entropy_with_logits(self.network(*features), clicks)
        self.dense.zero_grad()
        loss.backward()
        self.dense.step()
        for table in self.network.tables.values():
            if isinstance(table, TorchTable):
                table.update()
        return loss.item()


def draw_batch(count: int, rows: Mapping[str, int], seed: int, steps: int = STEPS) -> tuple[Tensor, ...]:
    """Random ids with histories of any length from 1; odd items, in a history or as the candidate, get clicks."""
    chance = torch.Generator().manual_seed(seed)

    def draw(name: str, *shape: int) -> Tensor:
        return torch.randint(1, rows[name], shape, generator=chance)

    lengths = torch.randint(1, steps + 1, (count, 1), generator=chance)
    seen = (torch.arange(steps) < lengths).long()
    items, categories = draw("items", count, steps) * seen, draw("categories", count, steps) * seen
    item = draw("items", count)
    odd = (items % 2 * seen).sum(1) / lengths[:, 0] + item % 2
    clicks = (torch.rand(count, generator=chance) < torch.sigmoid(4 * (odd - 1))).float()
    return draw("users", count), item, draw("categories", count), items, categories, clicks

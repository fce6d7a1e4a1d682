"""Recommendation networks, written small: `fields` categorical inputs, some dense ones, and histories of items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.coverage.builders.histories import HISTORY, ROWS, WIDTH, histories, perceptron
from bench.coverage.exported import Built

FIELDS, DENSE, BATCH = 6, 4, 3


def recommender(name: str, facts: Mapping[str, Any]) -> Built:
    import torch

    ids = torch.randint(0, ROWS, (BATCH, FIELDS))
    history = torch.randint(1, ROWS, (BATCH, HISTORY))
    history[0, 6:] = 0  # 0 fills short histories
    dense, item = torch.randn(BATCH, DENSE), torch.randint(1, ROWS, (BATCH,))
    if name in ("din", "dien", "bst"):
        inputs = {"history": history, "item": item}
    elif name in ("gru4rec", "lstm4rec", "sasrec"):
        inputs = {"history": history}
    elif name in ("ncf", "two_tower"):
        inputs = {"user": torch.randint(0, ROWS, (BATCH,)), "item": item}
    else:
        inputs = {"ids": ids, "dense": dense}
    return Built(_network(name), inputs)


def _network(name: str) -> Any:
    """The module of that name; classes stand in functions, since this module is read where there is no PyTorch."""
    made: dict[str, Callable[[], Any]] = {**_crosses(), **histories(), **_towers()}
    return made[name]()


def _crosses() -> dict[str, Callable[[], Any]]:
    """Networks that cross features of one row."""
    import torch
    from torch import nn

    flat = FIELDS * WIDTH + DENSE

    class Fields(nn.Module):  # type: ignore[misc]
        """Embeds the fields; subclasses give logits of the embedded fields and the dense features."""

        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(ROWS, WIDTH) for _ in range(FIELDS))
            self.wide = nn.ModuleList(nn.Embedding(ROWS, 1) for _ in range(FIELDS))
            self.deep = perceptron(flat, 32, 16, 1)
            self.prepare()

        def prepare(self) -> None:
            """Parameters of a subclass."""

        def forward(self, ids: Any, dense: Any) -> Any:
            rows = torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], dim=1)
            first = torch.cat([table(ids[:, i]) for i, table in enumerate(self.wide)], dim=1).sum(1, keepdim=True)
            return torch.sigmoid(self.logits(rows, first, dense))

        def flat(self, rows: Any, dense: Any) -> Any:
            return torch.cat([rows.flatten(1), dense], dim=1)

    class FactorisationMachine(Fields):
        def logits(self, rows: Any, first: Any, dense: Any) -> Any:
            return first + 0.5 * (rows.sum(1).pow(2) - rows.pow(2).sum(1)).sum(1, keepdim=True)

    class DeepFM(FactorisationMachine):
        def logits(self, rows: Any, first: Any, dense: Any) -> Any:
            return super().logits(rows, first, dense) + self.deep(self.flat(rows, dense))

    class WideDeep(Fields):
        def logits(self, rows: Any, first: Any, dense: Any) -> Any:
            return first + self.deep(self.flat(rows, dense))

    class Dlrm(Fields):
        def prepare(self) -> None:
            self.bottom, self.top = perceptron(DENSE, 16, WIDTH), perceptron(21 + WIDTH, 16, 1)

        def logits(self, rows: Any, first: Any, dense: Any) -> Any:
            bottom = self.bottom(dense)
            every = torch.cat([bottom.unsqueeze(1), rows], dim=1)
            products = torch.bmm(every, every.transpose(1, 2))
            i, j = torch.tril_indices(FIELDS + 1, FIELDS + 1, offset=-1)
            return self.top(torch.cat([bottom, products[:, i, j]], dim=1))

    class Cross(Fields):
        def prepare(self) -> None:
            self.weights = nn.ParameterList(nn.Parameter(torch.randn(flat, 1) * 0.1) for _ in range(3))
            self.biases = nn.ParameterList(nn.Parameter(torch.zeros(flat)) for _ in range(3))
            self.last = nn.Linear(2 * flat, 1)

        def logits(self, rows: Any, first: Any, dense: Any) -> Any:
            start = found = self.flat(rows, dense)
            for weight, bias in zip(self.weights, self.biases, strict=True):
                found = start * (found @ weight) + bias + found
            return self.last(torch.cat([found, torch.relu(start)], dim=1))

    class CrossV2(Fields):
        def prepare(self) -> None:
            self.crosses = nn.ModuleList(nn.Linear(flat, flat) for _ in range(3))
            self.last = nn.Linear(flat, 1)

        def logits(self, rows: Any, first: Any, dense: Any) -> Any:
            start = found = self.flat(rows, dense)
            for cross in self.crosses:
                found = start * cross(found) + found
            return self.last(found)

    class CompressedInteraction(Fields):
        def prepare(self) -> None:
            self.mixes = nn.ModuleList([nn.Conv1d(FIELDS * FIELDS, 12, 1), nn.Conv1d(12 * FIELDS, 12, 1)])
            self.last = nn.Linear(24, 1)

        def logits(self, rows: Any, first: Any, dense: Any) -> Any:
            found, kept = rows, []
            for mix in self.mixes:
                outer = torch.einsum("bid,bjd->bijd", found, rows)
                found = torch.relu(mix(outer.flatten(1, 2)))
                kept.append(found.sum(2))
            return first + self.last(torch.cat(kept, dim=1)) + self.deep(self.flat(rows, dense))

    class AutoInt(Fields):
        def prepare(self) -> None:
            self.attentions = nn.ModuleList(nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2))
            self.last = nn.Linear(FIELDS * WIDTH, 1)

        def logits(self, rows: Any, first: Any, dense: Any) -> Any:
            for attention in self.attentions:
                rows = torch.relu(attention(rows, rows, rows, need_weights=False)[0] + rows)
            return self.last(rows.flatten(1))

    class ProductNetwork(Fields):
        def prepare(self) -> None:
            self.top = perceptron(flat + FIELDS * (FIELDS - 1) // 2, 32, 1)

        def logits(self, rows: Any, first: Any, dense: Any) -> Any:
            pairs = [(i, j) for i in range(FIELDS) for j in range(i + 1, FIELDS)]
            left, right = rows[:, [i for i, _ in pairs]], rows[:, [j for _, j in pairs]]
            return self.top(torch.cat([self.flat(rows, dense), (left * right).sum(2)], dim=1))

    class Experts(Fields):
        """MMoE's two tasks; PLE's in one level."""

        def prepare(self) -> None:
            self.experts = nn.ModuleList(perceptron(flat, 16, 8) for _ in range(4))
            self.gates = nn.ModuleList(nn.Linear(flat, self.seen()) for _ in range(2))
            self.towers = nn.ModuleList(perceptron(8, 8, 1) for _ in range(2))

        def seen(self) -> int:
            return 4

        def logits(self, rows: Any, first: Any, dense: Any) -> Any:
            start = self.flat(rows, dense)
            made = torch.stack([expert(start) for expert in self.experts], dim=1)
            found = []
            for task, (gate, tower) in enumerate(zip(self.gates, self.towers, strict=True)):
                own = made if self.seen() == 4 else torch.cat([made[:, task : task + 1], made[:, 2:]], dim=1)
                found.append(tower((torch.softmax(gate(start), dim=1).unsqueeze(2) * own).sum(1)))
            return torch.cat(found, dim=1)

    class Extraction(Experts):
        def seen(self) -> int:
            return 3

    return {
        "fm": FactorisationMachine,
        "deepfm": DeepFM,
        "wide_deep": WideDeep,
        "dlrm": Dlrm,
        "dcn": Cross,
        "dcn_v2": CrossV2,
        "xdeepfm": CompressedInteraction,
        "autoint": AutoInt,
        "pnn": ProductNetwork,
        "mmoe": Experts,
        "ple": Extraction,
    }


def _towers() -> dict[str, Callable[[], Any]]:
    """Networks of a user and an item."""
    import torch
    from torch import nn

    class Collaborative(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(ROWS, WIDTH) for _ in range(4))
            self.deep, self.last = perceptron(2 * WIDTH, 16, WIDTH), nn.Linear(2 * WIDTH, 1)

        def forward(self, user: Any, item: Any) -> Any:
            product = self.tables[0](user) * self.tables[1](item)
            deep = self.deep(torch.cat([self.tables[2](user), self.tables[3](item)], dim=1))
            return torch.sigmoid(self.last(torch.cat([product, deep], dim=1)))

    class TwoTowers(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(ROWS, WIDTH), nn.Embedding(ROWS, WIDTH)
            self.left, self.right = perceptron(WIDTH, 16, WIDTH), perceptron(WIDTH, 16, WIDTH)

        def forward(self, user: Any, item: Any) -> Any:
            left = nn.functional.normalize(self.left(self.users(user)), dim=1)
            right = nn.functional.normalize(self.right(self.items(item)), dim=1)
            return (left * right).sum(1), left

    return {"ncf": Collaborative, "two_tower": TwoTowers}

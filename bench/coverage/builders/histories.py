"""Recommendation networks that read a history of items; 0 fills short ones."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

ROWS, WIDTH, HISTORY = 50, 8, 10


def perceptron(*widths: int) -> Any:
    """Dense layers with Relu between them."""
    from torch import nn

    layers: list[Any] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def histories() -> dict[str, Callable[[], Any]]:
    """Makers of the networks, by name; classes stand in functions, since there may be no PyTorch."""
    import torch
    from torch import nn

    class Attended(nn.Module):  # type: ignore[misc]
        """DIN: the weight of each item of the history is a network's of it and the item asked for."""

        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(ROWS, WIDTH, padding_idx=0)
            self.weigh, self.last = perceptron(4 * WIDTH, 16, 1), perceptron(3 * WIDTH, 16, 1)

        def read(self, rows: Any) -> Any:
            return rows

        def forward(self, history: Any, item: Any) -> Any:
            rows, asked = self.read(self.items(history)), self.items(item)
            wide = asked.unsqueeze(1).expand(-1, rows.shape[1], -1)
            weights = self.weigh(torch.cat([wide, rows, wide - rows, wide * rows], dim=2)).squeeze(2)
            weights = torch.softmax(weights.masked_fill(history == 0, -1e9), dim=1)
            found = torch.bmm(weights.unsqueeze(1), rows).squeeze(1)
            return torch.sigmoid(self.last(torch.cat([found, asked, found * asked], dim=1)))

    class Evolved(Attended):
        """DIEN without its auxiliary loss: the items pass a GRU."""

        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)

        def read(self, rows: Any) -> Any:
            return self.recurrent(rows)[0]

    class Behaviour(nn.Module):  # type: ignore[misc]
        """BST: a transformer over the history and the item."""

        def __init__(self) -> None:
            super().__init__()
            self.items, self.places = nn.Embedding(ROWS, WIDTH), nn.Embedding(HISTORY + 1, WIDTH)
            self.block = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, dropout=0.0)
            self.last = perceptron((HISTORY + 1) * WIDTH, 16, 1)

        def forward(self, history: Any, item: Any) -> Any:
            every = torch.cat([history, item.unsqueeze(1)], dim=1)
            rows = self.items(every) + self.places(torch.arange(every.shape[1]))
            return torch.sigmoid(self.last(self.block(rows).flatten(1)))

    class SelfAttended(nn.Module):  # type: ignore[misc]
        """SASRec: causal attention, scores of all items."""

        def __init__(self) -> None:
            super().__init__()
            self.items, self.places = nn.Embedding(ROWS, WIDTH), nn.Embedding(HISTORY, WIDTH)
            self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, history: Any) -> Any:
            length = history.shape[1]
            rows = self.items(history) + self.places(torch.arange(length))
            later = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
            rows = self.norm(rows + self.attention(rows, rows, rows, attn_mask=later, need_weights=False)[0])
            return rows[:, -1] @ self.items.weight.T

    def recurrent(cell: Callable[..., Any], **facts: Any) -> Callable[[], Any]:
        class Recurrent(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.items, self.cell = nn.Embedding(ROWS, WIDTH), cell(WIDTH, 16, batch_first=True, **facts)
                self.last = nn.Linear(32 if facts.get("bidirectional") else 16, ROWS)

            def forward(self, history: Any) -> Any:
                return self.last(self.cell(self.items(history))[0][:, -1])

        return Recurrent

    return {
        "din": Attended,
        "dien": Evolved,
        "bst": Behaviour,
        "sasrec": SelfAttended,
        "gru4rec": recurrent(nn.GRU, num_layers=2),
        "lstm4rec": recurrent(nn.LSTM, bidirectional=True),
    }

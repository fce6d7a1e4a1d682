"""Train a small model with PyTorch on veltair's operators, and serve it.

    python examples/train_with_own_operators.py
    python examples/train_with_own_operators.py --trials 0     # compiles at once, without a search

Needs PyTorch. A user's clicks are a bag of any length, whose rows row-wise Adagrad updates in the backward pass; a GRU
runs over the items that the user saw last. The trained model is exported and compiled, and answers as it did in torch.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import veltair
from veltair.training import EmbeddingBag, Gru, RowWiseAdagrad, concat_sum

ITEMS, DIM, SEEN = 200, 8, 6
NAMES = ["clicks", "offsets", "seen"]


class Ranker(nn.Module):
    """Clicked ids in bags, and the last SEEN items of each user, to the probability of a click (users, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.clicks = EmbeddingBag(ITEMS, DIM, mode="mean", optimizer=RowWiseAdagrad(lr=0.1))
        self.items = EmbeddingBag(ITEMS, DIM, optimizer=RowWiseAdagrad(lr=0.1))
        self.gru, self.top = Gru(DIM, DIM), nn.Linear(3 * DIM, 1)

    def forward(self, clicks: Tensor, offsets: Tensor, seen: Tensor) -> Tensor:
        rows = self.items(seen.reshape(-1, 1)).reshape(-1, SEEN, DIM)
        states, _ = self.gru(rows)
        parts = [self.clicks(clicks, offsets), concat_sum([rows, states], 1), states[:, -1]]
        return torch.sigmoid(self.top(torch.cat(parts, 1)))


def draw(users: int) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Random users, who click more where they clicked odd items."""
    lengths = torch.randint(1, 9, (users,))
    clicks = torch.randint(0, ITEMS, (int(lengths.sum()),))
    offsets = torch.cumsum(lengths, 0) - lengths
    odd = torch.zeros(users).index_add_(0, torch.arange(users).repeat_interleave(lengths), (clicks % 2).float())
    clicked = (torch.rand(users) < torch.sigmoid(6 * (odd / lengths - 0.5))).float()
    return (clicks, offsets, torch.randint(0, ITEMS, (users, SEEN))), clicked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8, help="candidates measured for each distinct layer")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Ranker()
    dense = torch.optim.Adam([*model.gru.parameters(), *model.top.parameters()], lr=0.01)
    for step in range(201):
        features, clicked = draw(256)
        loss = nn.functional.binary_cross_entropy(model(*features)[:, 0], clicked)
        dense.zero_grad()
        loss.backward()  # updates the rows of both tables
        dense.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    features, _ = draw(4)
    axes = {name: {0: "users"} for name in (*NAMES, "score")} | {"clicks": {0: "ids"}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ranker.onnx"
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of the exporter, about its age
            torch.onnx.export(
                model.eval(),
                features,
                str(path),
                dynamo=False,
                input_names=NAMES,
                output_names=["score"],
                dynamic_axes=axes,
            )
        artifact = veltair.compile(path, Path(folder) / "ranker", trials=args.trials, precision="fp32", qos_ms=5)
        print(artifact.summary())
        with veltair.load(artifact) as served, torch.no_grad():
            answer = served({name: value.numpy() for name, value in zip(NAMES, features, strict=True)})["score"]
            print(f"torch and veltair differ by at most {np.abs(answer - model(*features).numpy()).max():.1e}")


if __name__ == "__main__":
    main()

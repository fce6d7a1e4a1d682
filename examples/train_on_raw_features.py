"""Train on raw features and serve what was trained: one description of the columns for both.

    python examples/train_on_raw_features.py
    python examples/train_on_raw_features.py --trials 0     # compiles at once, without a search

`veltair.features` turns batches of raw features into the ids that the model looks up, by the code that serves them, so
that training and serving cannot differ. The model is small and in numpy: a weight for each id, added up, and a sigmoid.
Its tables then become files of the description, which `veltair.compile` reads.

With torch, a table is `torch.nn.EmbeddingBag(rows, dim, mode="sum", include_last_offset=True)`, which takes a column as
it is, and a DataLoader reads Parquet, Arrow or CSV files in several processes:

    loader = DataLoader(columns.torch(paths, rows=4096, keep=("click",)), batch_size=None, num_workers=4)
    for batch in loader:
        score = users(*batch["user"]) + items(*batch["history"])
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import veltair

ROWS = {"user": 500, "history": 100}  # of the tables
FEATURES = """
[[features]]
name = "user"
kind = "string"

[[features]]
name = "history"             # "i7;i42;i15"
kind = "tokens"
separator = ";"

[[tables]]
name = "users"
rows = 500
dim = 1
file = "user.npy"            # written when the model is trained

[[tables]]
name = "items"
rows = 100
dim = 1
file = "history.npy"

[[columns]]
feature = "user"
hash = 500
table = "users"

[[columns]]
feature = "history"
hash = 100
combiner = "sum"
table = "items"

[[inputs]]
name = "x"
columns = ["user", "history"]
"""


def days(count: int, rows: int = 512) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Raw features and clicks, batch after batch: who has seen an item below i10 clicks mostly."""
    chance = np.random.default_rng(0)
    for _ in range(count):
        seen = [chance.integers(0, 60, n) for n in chance.integers(0, 6, rows)]
        odds = np.array([0.9 if (items < 10).any() else 0.1 for items in seen])
        texts = [";".join(f"i{item}" for item in items) for items in seen]
        users = [f"u{user}" for user in chance.integers(0, 50, rows)]
        yield {"user": users, "history": texts}, (chance.random(rows) < odds).astype(np.float32)


def scores(tables: dict[str, np.ndarray], batch: dict[str, Any]) -> np.ndarray:
    """The sum of the weights of a row's ids, as a probability."""
    total = np.zeros(len(batch["user"].offsets) - 1, np.float32)
    for name, table in tables.items():
        ids, offsets = batch[name]
        np.add.at(total, np.repeat(np.arange(len(total)), np.diff(offsets)), table[ids, 0])
    return 1 / (1 + np.exp(-total))


def train(columns: veltair.TrainingFeatures) -> dict[str, np.ndarray]:
    """The tables after some steps of gradient descent."""
    tables = {name: np.zeros((rows, 1), np.float32) for name, rows in ROWS.items()}
    for raw, clicks in days(200):
        batch = columns(raw)
        error = (clicks - scores(tables, batch)) * 0.05
        for name, table in tables.items():
            ids, offsets = batch[name]
            np.add.at(table[:, 0], ids, np.repeat(error, np.diff(offsets)))
    return tables


def network() -> onnx.ModelProto:
    """x float32 (n, 2), what the columns give -> score (n, 1)."""
    nodes = [
        helper.make_node("MatMul", ["x", "ones"], ["total"]),
        helper.make_node("Sigmoid", ["total"], ["score"]),
    ]
    ones = numpy_helper.from_array(np.ones((2, 1), np.float32), "ones")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    score = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n", 1])
    graph = helper.make_graph(nodes, "clicks", [x], [score], [ones])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on raw features and serve what was trained.")
    parser.add_argument("--trials", type=int, help="candidates to measure of each layer (default: some)")
    trials = parser.parse_args().trials
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "features.toml").write_text(FEATURES)
        columns = veltair.features(here / "features.toml")
        tables = train(columns)
        for name, table in tables.items():
            np.save(here / f"{name}.npy", table)
        raw, clicks = next(days(1))
        trained = scores(tables, columns(raw))
        print(f"accuracy {np.mean((trained > 0.5) == (clicks > 0.5)):.2f}")
        artifact = veltair.compile(
            network(),
            here / "clicks",
            features=here / "features.toml",
            max_batch=512,
            qos_ms=10,
            trials=trials,
            precision="fp32",
        )
        with veltair.load(artifact) as model:
            served = model({name: np.array(texts, object)[:, None] for name, texts in raw.items()})["score"]
        print(f"served and trained scores differ by at most {np.abs(served[:, 0] - trained).max():.0e}")


if __name__ == "__main__":
    main()

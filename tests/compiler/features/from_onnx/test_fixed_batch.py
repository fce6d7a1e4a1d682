"""Models with columns whose inputs fix the batch: it is open, and the greatest one, where rows do not mix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from features.checked_columns import bucket, check
from features.column_nets import CITIES, CONSTANTS, STRING, hashed, model, node

from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ModelError

FLOAT = onnx.TensorProto.FLOAT
CONSTANTS |= {"batch/four rows": np.array([4, 4]), "batch/one row": np.array([1, 4]), "batch/rest": np.array([4, -1])}
TEXTS = [b"Rome", b"", b"x" * 70, "ü".encode()]


@pytest.mark.parametrize(("batch", "shape"), [(4, "batch/four rows"), (1, "batch/one row"), (4, "batch/rest")])
def test_a_fixed_batch_is_the_greatest(batch: int, shape: str, tmp_path: Path) -> None:
    """Shapes that the graph spells out begin with it."""
    nodes = [
        hashed("city", "ids", "five"),
        node("Gather", ["cities", "ids"], "rows"),
        node("Reshape", ["rows", shape], "each"),
        node("Concat", ["each", "n"], "y", axis=1),
    ]
    inputs = {"city": (STRING, [batch, 1]), "n": (FLOAT, [batch, 2])}
    path = model(tmp_path / "m.onnx", nodes, inputs, ["y"])
    numbers = np.arange(8, dtype=np.float32).reshape(4, 2)
    want = np.concatenate([CITIES[[bucket(text, 5) for text in TEXTS]], numbers], 1)
    assert load_model(path).max_batch == batch
    check(path, tmp_path, {"city": np.array(TEXTS, object)[:, None], "n": numbers}, want)


def test_a_fixed_batch_whose_rows_mix_is_named(tmp_path: Path) -> None:
    nodes = [hashed("city", "ids", "five"), node("Gather", ["cities", "ids"], "rows")]
    nodes += [node("ReduceMean", ["rows", "none"], "mean", keepdims=1), node("Sub", ["rows", "mean"], "y")]
    path = model(tmp_path / "m.onnx", nodes, {"city": (STRING, [4, 1])}, ["y"])
    with pytest.raises(ModelError, match="its inputs fix the batch to 4, and what it computes mixes the rows"):
        load_model(path)


def test_inputs_that_disagree_stay_as_they_are(tmp_path: Path) -> None:
    nodes = [hashed("city", "ids", "five"), node("Gather", ["cities", "ids"], "rows")]
    nodes += [node("Concat", ["rows", "n"], "y", axis=1)]
    path = model(tmp_path / "m.onnx", nodes, {"city": (STRING, [4, 1]), "n": (FLOAT, ["B", 2])}, ["y"])
    with pytest.raises(ModelError, match=r"input 'city' has shape \[4, 1\]"):
        load_model(path)

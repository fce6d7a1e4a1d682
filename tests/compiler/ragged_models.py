"""Embedding bags as PyTorch's exporters write them (`exported_bags/export.py`), and queries of bags for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import numpy_helper, parser

FOLDER = Path(__file__).parent / "exported_bags"
EXPORTERS = ("torchscript", "dynamo")
ROWS, TAGS, ROOM = 11, 7, 5
Feeds = dict[str, NDArray[Any]]


def exported(name: str) -> onnx.ModelProto:
    """A model, as "sum.dynamo"."""
    return parser.parse_model((FOLDER / f"{name}.txt").read_text())


def session(proto: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def constants(proto: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def bags(kind: str, lengths: NDArray[Any], rng: np.random.Generator, rows: int = ROWS) -> Feeds:
    """A query of one of the models with a single table, with bags of these lengths."""
    ends = np.concatenate([[0], lengths.cumsum()])
    ids = rng.integers(0, rows, ends[-1])
    if kind == "ends":
        return {"ids": ids, "ends": ends}
    if kind == "lengths":
        return {"ids": ids, "lengths": lengths}
    found = {"ids": ids, "offsets": ends[:-1]}
    return found | {"weights": rng.standard_normal(len(ids)).astype(np.float32)} if kind == "weighted" else found


def scores(proto: onnx.ModelProto, kind: str, feeds: Feeds, lengths: NDArray[Any]) -> NDArray[Any]:
    """The answer in numpy: of an empty bag zeros, as PyTorch has it."""
    known = constants(proto)
    rows = known["bag.weight"].astype(np.float64)[feeds["ids"]]
    rows = rows * feeds["weights"][:, None] if kind == "weighted" else rows
    owner = np.repeat(np.arange(len(lengths)), lengths)
    total = np.zeros((len(lengths), rows.shape[1]))
    np.add.at(total, owner, rows)
    if kind in ("mean", "ends"):
        total /= np.maximum(lengths, 1)[:, None]
    return total @ known["top.weight"].T + known["top.bias"]


def ranked(lengths: NDArray[Any], rng: np.random.Generator) -> Feeds:
    """A query of the ranker. lengths: of the bags of clicks and tags, (2, samples)."""
    found: Feeds = {"dense": rng.standard_normal((lengths.shape[1], 3)).astype(np.float32)}
    for name, own, rows in zip(("click", "tag"), lengths, (ROWS, TAGS), strict=True):
        found |= {f"{name}s": rng.integers(0, rows, own.sum()), f"{name}_offsets": own.cumsum() - own}
    return found

"""Networks that count words, as exporters of text vectorizers write them."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STRING, FLOAT = TensorProto.STRING, TensorProto.FLOAT
LETTERS = "[a-zA-Zäöüß0-9_]"
WORDS = ["good", "bad", "film", "not", "größe", "very good"]  # the last is a pair
WEIGHTS = np.random.default_rng(0).standard_normal((6, 3), np.float32)
ROWS = np.random.default_rng(1).standard_normal((4, 2), np.float32)  # of a table
node = helper.make_node


def counting(text: str, out: str, locale: str = "en_US", pad: str = "#") -> list[onnx.NodeProto]:
    """Counts of WORDS in a text, as scikit-learn's `CountVectorizer(ngram_range=(1, 2))` counts them."""
    return [
        node("Reshape", [text, "flat"], [f"{out}/flat"]),
        node("StringNormalizer", [f"{out}/flat"], [f"{out}/lower"], case_change_action="LOWER", locale=locale),
        node(
            "Tokenizer",
            [f"{out}/lower"],
            [f"{out}/tokens"],
            domain="com.microsoft",
            mark=0,
            mincharnum=2,
            pad_value=pad,
            tokenexp=LETTERS + "+",
        ),
        node(
            "TfIdfVectorizer",
            [f"{out}/tokens"],
            [out],
            mode="TF",
            min_gram_length=1,
            max_gram_length=2,
            max_skip_count=0,
            ngram_counts=[0, 5],
            ngram_indexes=list(range(6)),
            pool_strings=[*WORDS[:5], "very", "good"],
        ),
    ]


def count_words(text: str) -> list[int]:
    """The same of one text, in Python."""
    tokens = [token for token in re.findall(LETTERS + "+", text.lower()) if len(token) > 1]
    pairs = list(map(" ".join, pairwise(tokens)))
    return [(tokens + pairs).count(word) for word in WORDS]


def save(
    path: Path, nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[Any]]], output: tuple[int, list[Any]]
) -> Path:
    """A model with the output `y`; `flat`, `column`, `weights` and `rows` are constants."""
    constants = {"flat": np.array([-1]), "column": np.array([-1, 1]), "weights": WEIGHTS, "rows": ROWS}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("y", *output)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    versions = {"": 20, "com.microsoft": 1, "ai.onnx.ml": 3}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def reviews(path: Path, locale: str = "en_US") -> Path:
    """Scores (B, 3) of a text: its counts times WEIGHTS."""
    nodes = [*counting("text", "counts", locale), node("MatMul", ["counts", "weights"], ["y"])]
    return save(path, nodes, {"text": (STRING, ["B", 1])}, (FLOAT, ["B", 3]))

"""Look-ups that do more than add up rows: from ONNX to one layer, equal to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nets import Arrays
from row_models import ROWS, drawn, operators

random = np.random.default_rng(9)
AXES: Arrays = {"one": np.array([1]), "last": np.array([-1])}
NODES: dict[str, list[Any]] = {
    "weighted sum": [
        ("Gather", "t a", "r", {}),
        ("Unsqueeze", "w last", "v", {}),
        ("Mul", "v r", "m", {}),
        ("ReduceSum", "m one", "y", {"keepdims": 0}),
    ],
    "weighted mean": [
        ("Gather", "t a", "r", {}),
        ("Unsqueeze", "w last", "v", {}),
        ("Mul", "r v", "m", {}),
        ("ReduceMean", "m", "y", {"axes": [1], "keepdims": 0}),
    ],
    "messages": [
        ("Gather", "t a", "near", {}),
        ("Gather", "t self", "h", {}),
        ("Unsqueeze", "h one", "own", {}),
        ("Mul", "near own", "p", {}),
        ("ReduceSum", "p last", "dot", {"keepdims": 1}),
        ("Sigmoid", "dot", "edge", {}),
        ("Mul", "edge near", "m", {}),
        ("ReduceSum", "m one", "y", {"keepdims": 0}),
    ],
}
GAP: list[Any] = [
    ("Gather", "t self", "h", {}),
    ("Gather", "u kind", "r", {}),
    ("Gather", "t other", "o", {}),
    ("Add", "r h", "s", {}),
    ("Sub", "s o", "gap", {}),
]
NODES["triples 1"] = [
    *GAP,
    ("Abs", "gap", "size", {}),
    ("ReduceSum", "size one", "d", {"keepdims": 0}),
    ("Neg", "d", "y", {}),
]
NODES["triples 2"] = [*GAP, ("ReduceL2", "gap", "d", {"axes": [1], "keepdims": 0}), ("Neg", "d", "y", {})]


def feeds() -> Arrays:
    return {
        "a": random.integers(0, 40, (ROWS, 11)),
        "w": drawn(ROWS, 11),
        "self": random.integers(0, 40, ROWS),
        "kind": random.integers(0, 5, ROWS),
        "other": random.integers(0, 40, ROWS),
    }


@pytest.mark.parametrize("name", NODES)
def test_each_is_one_layer(tmp_path: Path, name: str) -> None:
    read = {word for _, reads, *_ in NODES[name] for word in reads.split()}
    given = {key: value for key, value in feeds().items() if key in read}
    constants = {key: value for key, value in {**AXES, "t": drawn(40, 37), "u": drawn(5, 37)}.items() if key in read}
    assert operators(tmp_path, NODES[name], given, constants) == ["lookups"]


def test_rows_that_something_else_reads_are_left_to_others(tmp_path: Path) -> None:
    """The messages' likeness is read twice; the tails are of a third table."""
    twice = [*NODES["messages"][:-1], ("ReduceSum", "m one", "z", {"keepdims": 0}), ("Squeeze", "dot last", "q", {})]
    twice += [("ReduceSum", "q one", "k", {"keepdims": 1}), ("Add", "z k", "y", {})]
    given = {key: feeds()[key] for key in ("a", "self")}
    found = operators(tmp_path, twice, given, AXES | {"t": drawn(40, 16)})
    assert "lookups" not in found
    third = [("Gather", "v other", "o", {}) if node[2] == "o" else node for node in NODES["triples 2"]]
    given = {key: np.minimum(feeds()[key], 4) for key in ("self", "kind", "other")}
    found = operators(tmp_path, third, given, {"t": drawn(5, 16), "u": drawn(5, 16), "v": drawn(5, 16)})
    assert "lookups" not in found

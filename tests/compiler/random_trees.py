"""Random ensembles of decision trees, as attributes of ONNX's operators of trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

FEATURES = 6
THRESHOLDS = (0.0, -0.0, 0.5, -1.25, np.inf, -np.inf, 1e-45, 2.0)  # at which inputs lie, too


def drawn_rows(rows: int, rng: np.random.Generator, dtype: type = np.float32) -> np.ndarray[Any, Any]:
    """Normal numbers, thresholds themselves and what lies beside them, and NaN."""
    x = rng.standard_normal((rows, FEATURES)).astype(dtype)
    special = rng.choice(np.array([*THRESHOLDS, np.nan], np.float32), x.shape).astype(dtype)
    with np.errstate(over="ignore", under="ignore"):
        special = np.nextafter(special, rng.choice(np.array([np.inf, -np.inf], dtype), x.shape))
        special = np.where(rng.random(x.shape) < 0.7, np.nextafter(special, dtype(0)), special)
    return np.where(rng.random(x.shape) < 0.5, special, x).astype(dtype)


def random_branches(trees: int, rng: np.random.Generator, modes: Sequence[str], missing: bool) -> dict[str, Any]:
    """The attributes of nodes; `leaves_of` lists the leaves that they end in."""
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    columns: dict[str, list[Any]] = {name: [] for name in (*names, "missing_value_tracks_true")}
    for tree in range(trees):
        inner = int(rng.integers(0, 12))  # a tree may be a leaf
        free, ends = [0], [0]  # leaves, by number
        children: dict[int, tuple[int, int]] = {}
        for _ in range(inner):
            place = free.pop(int(rng.integers(len(free))))
            children[place] = len(ends), len(ends) + 1
            free += children[place]
            ends += children[place]
        for number in range(len(ends)):
            branch = number in children
            value = rng.choice(THRESHOLDS) if rng.random() < 0.5 else rng.standard_normal()
            facts = (
                tree,
                number,
                int(rng.integers(FEATURES)) if branch else 0,
                float(np.float32(value)) if branch else 0.0,
            )
            sides = children.get(number, (0, 0))
            mode = str(rng.choice(modes)) if branch else "LEAF"
            row = *facts, mode, *sides, int(branch and missing and rng.random() < 0.5)
            for column, fact in zip(columns.values(), row, strict=True):
                column.append(fact)
    return {f"nodes_{name}": column for name, column in columns.items()}


def leaves_of(branches: dict[str, Any]) -> list[tuple[int, int]]:
    """Tree and number of each leaf."""
    nodes = zip(branches["nodes_treeids"], branches["nodes_nodeids"], branches["nodes_modes"], strict=True)
    return [(tree, number) for tree, number, mode in nodes if mode == "LEAF"]


def weights_of(entries: Sequence[tuple[int, int, int, float]], prefix: str = "target") -> dict[str, Any]:
    """The attributes of leaves: tree, number, target and weight of each entry."""
    trees, numbers, targets, weights = ([entry[i] for entry in entries] for i in range(4))
    of_leaf = {"treeids": trees, "nodeids": numbers, "ids": targets, "weights": weights}
    return {f"{prefix}_{name}": column for name, column in of_leaf.items()}

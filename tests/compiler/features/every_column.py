"""Helpers of the tests: a description with a column of every kind, and raw features for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from features.compiled_columns import NUMBERS, texts

from veltair.compiler.graph.layer_spec import Point

FEATURES = [
    {"name": "f", "kind": "float"},
    {"name": "i", "kind": "int"},
    {"name": "many", "kind": "int", "width": 4},
    {"name": "s", "kind": "string", "max_bytes": 512},
    {"name": "kept", "kind": "string", "max_bytes": 512, "empty": "keep"},
    {"name": "wide", "kind": "string", "width": 3, "max_bytes": 1024},
    {"name": "t", "kind": "tokens", "separator": ";", "max_bytes": 512, "truncate": 5},
    {"name": "all", "kind": "tokens", "separator": ";", "max_bytes": 512, "empty": "keep"},
    {"name": "first", "kind": "tokens", "separator": ";", "max_bytes": 512, "truncate": 1},
    {"name": "dense", "kind": "dense", "width": 3},
    {"name": "n", "kind": "tokens", "separator": " ", "max_bytes": 512},
]
WORDS_KNOWN = ["", "a", "bc", "longer than eight", "Größe"]
COLUMNS: list[dict[str, Any]] = [
    {"feature": "f", "boundaries": [x * 0.3 - 1.5 for x in range(10)], "table": "t8"},
    {"name": "searched", "feature": "f", "boundaries": [x * 0.003 - 1.5 for x in range(1000)], "table": "t1001"},
    {"feature": "i", "hash": 100, "table": "t16"},
    {"name": "i.id", "feature": "i", "identity": 9, "table": "t16b", "empty_row": 3},
    {"name": "i.known", "feature": "i", "vocabulary": [5, 7, -3, 10**15], "oov": 3, "table": "t12"},
    {"name": "i.bucket", "feature": "i", "boundaries": [-5.0, 0.0, 3.0, 50.0], "table": "t8"},
    {"feature": "many", "hash": 30, "combiner": "mean", "table": "t8b"},
    {"name": "many.id", "feature": "many", "identity": 9, "guards": [{"remove": (2, 8)}], "table": "t16b"},
    {"feature": "s", "hash": 50, "table": "t5"},
    {
        "name": "s.known",
        "feature": "s",
        "vocabulary": WORDS_KNOWN,
        "default": 2,
        "guards": [{"replace": (0, 4), "value": 1}],
        "table": "t12",
    },
    {
        "name": "s.parts",
        "feature": "s",
        "vocabulary": ["a-bc", "-", "GRöSSE-a", "LONGER THAN EIGHT-longer", "BC-k"],
        "default": 6,
        "parts": [
            {"feature": "s", "case": "upper", "unicode": True},
            {"text": "-"},
            {"feature": "kept", "case": "lower"},
        ],
        "table": "t12",
    },
    {
        "name": "t.parts",
        "feature": "t",
        "vocabulary": ["<a", "<bc", "<longer than eight"],
        "parts": [{"text": "<"}, {"feature": "t", "case": "lower"}],
        "combiner": "sum",
        "table": "t8b",
    },
    {"name": "f.nan", "feature": "f", "boundaries": [-0.5, 0.5], "default": 1, "table": "t8"},
    {"name": "s.one", "feature": "s", "hash": 1, "table": "t1"},  # all into one bucket
    {"feature": "kept", "hash": 50, "table": "t5"},
    {"feature": "wide", "hash": 40, "combiner": "mean", "table": "t24"},
    {"name": "wide.rows", "feature": "wide", "vocabulary": WORDS_KNOWN, "combiner": "sequence", "table": "t8b"},
    {"name": "s.cross", "feature": "s", "cross": ["i", "kept"], "hash": 40, "table": "t24"},
    {"name": "wide.cross", "feature": "many", "cross": ["wide"], "hash": 24, "combiner": "mean", "table": "t24"},
    {
        "name": "f.crossed",
        "feature": "f",
        "crossed": [
            {"feature": "f", "boundaries": [x * 0.3 - 1.5 for x in range(10)]},
            {"feature": "wide", "vocabulary": WORDS_KNOWN, "oov": 2, "values": [False, 4, -1, 2**40, 0, 7, 8]},
            {"feature": "i", "vocabulary": [5, 7, -3]},
            {"feature": "kept"},
        ],
        "hash": 24,
        "combiner": "sum",
        "table": "t24",
    },
    {
        "name": "wide.crossed.rows",
        "feature": "wide",
        "crossed": [{"feature": "wide"}, {"feature": "i", "vocabulary": [5, 7], "values": [1, False, 2]}],
        "hash": 8,
        "combiner": "sequence",
        "table": "t8",
    },
    {"name": "s.lower", "feature": "s", "hash": 50, "case": "lower", "table": "t5"},
    {"name": "t.clean", "feature": "t", "hash": 40, "case": "upper", "strip": True, "combiner": "sum", "table": "t24"},
    {"name": "wide.strong", "feature": "wide", "hash": 40, "strong_key": [1, 2], "case": "lower", "table": "t24"},
    {"name": "kept.strip", "feature": "kept", "vocabulary": WORDS_KNOWN, "oov": 20, "strip": True, "table": "t24"},
    {"name": "i.cross", "feature": "i", "cross": ["s"], "cross_key": 5, "hash": 40, "table": "t24"},
    {"name": "s.strong", "feature": "s", "hash": 40, "strong_key": [133, 137], "table": "t24"},
    {"name": "i.strong", "feature": "i", "hash": 40, "strong_key": [2**63 - 1, 0], "table": "t24"},
    {"name": "i.rest", "feature": "i", "hash": 40, "remainder": True, "table": "t24"},
    {"name": "many.rest", "feature": "many", "vocabulary": [3, 7], "oov": 6, "remainder": True, "table": "t8b"},
    {
        "name": "kept.strong",
        "feature": "kept",
        "vocabulary": WORDS_KNOWN,
        "oov": 20,
        "strong_key": [1, 2],
        "table": "t24",
    },
    {"feature": "t", "hash": 40, "combiner": "sqrtn", "table": "t24"},
    {"name": "t.known", "feature": "t", "vocabulary": WORDS_KNOWN, "combiner": "sum", "table": "t8b", "empty_row": 2},
    {"feature": "all", "hash": 40, "combiner": "mean", "table": "t24"},
    {"feature": "first", "hash": 40, "combiner": "mean", "table": "t24"},
    {"feature": "dense"},
    {"feature": "n", "number": True},
]
SHAPES = {
    "t8": (11, 8),
    "t1001": (1001, 1),
    "t16": (100, 16),
    "t16b": (9, 16),
    "t12": (7, 12),
    "t5": (50, 5),
    "t1": (1, 5),
    "t24": (40, 24),
    "t8b": (30, 8),
}
POINT: Point = {"rows": 32, "columns": 2, "along": "rows", "ahead": 4}
LESS = frozenset({"avx2"})


def raw_features(seed: int, batch: int) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    ints = chance.integers(-10, 20, batch)
    ints[::7] = chance.integers(-(2**63), 2**63 - 1, len(ints[::7]), dtype=np.int64)
    floats = chance.standard_normal(batch).astype(np.float32)
    for place, odd in enumerate((-(2**63), 2**63 - 1, 2**40, 2**31, -1, 0, 10**15, 10**16)):
        ints[place * 3 % batch] = odd
    floats[: min(batch, 3)] = [np.nan, np.inf, -np.inf][: min(batch, 3)]
    return {
        "f": floats,
        "i": ints,
        "many": chance.integers(-1, 12, (batch, 4)),
        "s": texts(chance, batch),
        "kept": texts(chance, batch),
        "wide": texts(chance, 3 * batch),
        "t": texts(chance, batch, b";"),
        "all": texts(chance, batch, b";"),
        "first": texts(chance, batch, b";"),
        "dense": chance.standard_normal((batch, 3)).astype(np.float32),
        "n": texts(chance, batch, b" ", NUMBERS),
    }

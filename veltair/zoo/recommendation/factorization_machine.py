"""A factorisation machine (Rendle 2010) of 3 lists of tags and 8 fields, of MovieLens' kind.

    sum of w over all tags, plus half of |sum of v|^2 - sum of |v|^2 over all fields

Tags are one-hot vectors, summed and multiplied by their weights, as TensorFlow's multi-hot columns are; rows of the
fields are concatenated, and then summed.
"""

from __future__ import annotations

import numpy as np

from veltair.zoo.recommendation.recommender import RecommenderGraph, RecommenderSpec
from veltair.zoo.recommendation.table_sizes import EmbeddingTable

DIM, MAX_BATCH = 32, 1024
TAGS = {"genres": (20, 8), "tags": (1128, 24), "hours": (24, 4)}  # how many there are; ids in a list
FIELDS = (138_493, 27_278, 9_000, 3_500, 1_000, 500, 250, 100)


def _build(g: RecommenderGraph) -> tuple[str, int]:
    """genres, tags, hours int64 (n, 8, 24, 4), field_0 … int64 (n,) -> probability float32 (n, 1)."""
    values = g.constant("zero_and_one", np.array([0, 1], np.float32))
    counts = []
    for name, (depth, lookups) in TAGS.items():
        hot = [g.ids(name, lookups), g.constant(f"{name}.depth", np.array([depth])), values]
        counts.append(g.total(g.node("OneHot", hot, f"{name}.hot", axis=-1), f"{name}.counts"))
    width = sum(depth for depth, _ in TAGS.values())
    counted = g.node("Concat", counts, "counts", axis=1)
    first = g.linear(counted, "linear", width, 1, rms=4)
    rows = [g.rows(f"v_{i}", g.ids(f"field_{i}"), f"v_{i}.row") for i in range(len(FIELDS))]
    wide = [g.node("Unsqueeze", [row, g.axis(1)], f"{row}.wide") for row in rows]
    total = g.total(g.node("Concat", wide, "fields", axis=1), "total")
    squares = [g.node("Unsqueeze", [g.node("Mul", [r, r], f"{r}.square"), g.axis(1)], f"{r}.wide_square") for r in rows]
    alone = g.total(g.node("Concat", squares, "field_squares", axis=1), "squares")
    pairs = g.node("Sub", [g.node("Mul", [total, total], "total_square"), alone], "pairs")
    half = g.constant("half", np.array(0.5, np.float32))
    second = g.node("Mul", [g.node("ReduceSum", [pairs, g.axis(1)], "pair_sum", keepdims=1), half], "second")
    return g.node("Sigmoid", [g.node("Add", [first, second], "logit")], "probability"), 1


FACTORIZATION_MACHINE = RecommenderSpec(
    "factorization_machine",
    tuple(EmbeddingTable(f"v_{i}", rows, DIM, 0.25) for i, rows in enumerate(FIELDS)),
    _build,
    qos_ms=10,
    max_batch=MAX_BATCH,
)

"""DLRM-dcnv2 of MLPerf (Criteo 1TB made multi-hot; DCN-V2 by Wang et al. 2021) with its low-rank cross network."""

from __future__ import annotations

import math

from veltair.zoo.recommendation.recommender import RecommenderGraph, RecommenderSpec
from veltair.zoo.recommendation.table_sizes import EmbeddingTable

DIM, RANK, CROSSES = 128, 512, 3
BOTTOM, TOP = (13, 512, 256, 128), (1024, 1024, 512, 256)
ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63),
    *(40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4, 976, 14),
    *(40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)
LOOKUPS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)


def _build(g: RecommenderGraph) -> tuple[str, int]:
    """dense float32 (n, 13), sparse_0 … sparse_25 int64 (n, lookups) or, of one lookup, (n,) -> probability (n, 1)."""
    bottom = g.tower(g.floats("dense", BOTTOM[0]), "bottom", BOTTOM)
    bags = [g.lookups(f"table_{i}", f"sparse_{i}", count, f"bag_{i}") for i, count in enumerate(LOOKUPS)]
    x = first = g.node("Concat", [bottom, *bags], "features", axis=1)
    width = DIM * (1 + len(ROWS))
    for i in range(CROSSES):
        x = _cross(g, first, x, f"cross.{i}", width)
    rms = math.sqrt((1 + CROSS_GAIN**2) ** CROSSES)
    widths = (width, *TOP)
    return g.score(g.tower(x, "top", widths, rms), f"top.{len(TOP)}", widths[-1]), 1


CROSS_GAIN = 0.5  # what a cross layer adds, in deviations of its input


def _cross(g: RecommenderGraph, first: str, x: str, name: str, width: int) -> str:
    """first * (x @ V @ W + b) + x, as TorchRec's LowRankCrossNet."""
    v = g.constant(f"{name}.v", g.normal((width, RANK), 1 / math.sqrt(width)))
    w = g.constant(f"{name}.w", g.normal((RANK, width), CROSS_GAIN / math.sqrt(RANK)))
    low = g.node("MatMul", [x, v], f"{name}.low")
    high = g.node("MatMul", [low, w], f"{name}.high")
    bias = g.constant(f"{name}.bias", g.normal((width,), 0.1))
    factor = g.node("Add", [high, bias], f"{name}.factor")
    return g.node("Add", [g.node("Mul", [first, factor], f"{name}.product"), x], name)


DLRM_DCNV2 = RecommenderSpec(
    "dlrm_dcnv2",
    tuple(
        EmbeddingTable(f"table_{i}", rows, DIM, math.sqrt(3 / lookups))
        for i, (rows, lookups) in enumerate(zip(ROWS, LOOKUPS, strict=True))
    ),
    _build,
    qos_ms=60,
    max_batch=1024,
)

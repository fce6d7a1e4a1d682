"""DLRM's RM1, RM2 and RM3, Wide & Deep and NCF as DeepRecSys (Gupta et al. 2020) configures them for its simulator.

RM1 and RM2 are bound by lookups, RM3 by its towers. Rows and dense values are concatenated, without products of pairs
("cat"). In DeepRecSys' configurations, the first width of a bottom tower is that of the dense input.
"""

from __future__ import annotations

import math

from veltair.zoo.recommendation.recommender import RecommenderGraph, RecommenderSpec
from veltair.zoo.recommendation.table_sizes import EmbeddingTable

MAX_BATCH = 1024  # DeepRecSys draws query sizes from a log-normal distribution (5.1, 0.2), capped at this


def _dlrm(
    name: str,
    tables: int,
    rows: int,
    dim: int,
    lookups: int,
    bottom: tuple[int, ...],
    top: tuple[int, ...],
    qos_ms: int,
) -> RecommenderSpec:
    def build(g: RecommenderGraph) -> tuple[str, int]:
        """dense float32 (n, bottom[0]), sparse_0 … int64 (n, lookups), or (n,) for one lookup -> probability (n, 1)."""
        x = g.tower(g.floats("dense", bottom[0]), "bottom", bottom)
        bags = [g.lookups(f"table_{i}", f"sparse_{i}", lookups, f"bag_{i}") for i in range(tables)]
        x = g.node("Concat", [x, *bags], "features", axis=1)
        widths = (bottom[-1] + tables * dim, *top)
        return g.score(g.tower(x, "top", widths), f"top.{len(top)}", widths[-1]), 1

    bound = math.sqrt(3 / lookups)  # gives the sum of a bag variance one
    listed = tuple(EmbeddingTable(f"table_{i}", rows, dim, bound) for i in range(tables))
    return RecommenderSpec(name, listed, build, qos_ms, MAX_BATCH)


def _ncf(g: RecommenderGraph) -> tuple[str, int]:
    """user, item int64 (n,) -> relevance float32 (n, 64), after a ReLU.

    Each id has one row for the product and one for the tower (He et al. 2017). DeepRecSys' configuration ends in 64
    values, without a layer that reduces them to a score.
    """
    ids = {name: g.ids(name) for name in ("user", "item")}
    users, user, items, item = (g.rows(name, ids[name.partition("_")[0]], f"{name}.row") for name in NCF_TABLES)
    product = g.node("Mul", [users, items], "product")
    x = g.tower(g.node("Concat", [user, item], "pair", axis=1), "tower", (2 * NCF_DIM, *NCF_TOWER))
    x = g.node("Concat", [product, x], "both", axis=1)
    return g.node("Relu", [g.linear(x, "last", NCF_DIM + NCF_TOWER[-1], NCF_DIM)], "relevance"), NCF_DIM


NCF_DIM, NCF_TOWER = 64, (256, 256, 128, 64)
NCF_TABLES = {"user_mf": 140_000, "user_mlp": 140_000, "item_mf": 28_000, "item_mlp": 28_000}

RM1 = _dlrm("dlrm_rm1", 8, 4_000_000, 32, 80, bottom=(128, 64, 32), top=(256, 64), qos_ms=100)
RM2 = _dlrm("dlrm_rm2", 32, 500_000, 64, 120, bottom=(256, 128, 64), top=(128, 64), qos_ms=400)
RM3 = _dlrm("dlrm_rm3", 10, 2_000_000, 32, 20, bottom=(2560, 1024, 256, 32), top=(512, 256), qos_ms=100)
WIDE_DEEP = _dlrm("wide_deep", 27, 1_000_000, 32, 1, bottom=(512,), top=(1024, 512, 256), qos_ms=25)
NCF = RecommenderSpec(
    "ncf",
    tuple(EmbeddingTable(name, rows, NCF_DIM, math.sqrt(3)) for name, rows in NCF_TABLES.items()),
    _ncf,
    qos_ms=5,
    max_batch=MAX_BATCH,
)

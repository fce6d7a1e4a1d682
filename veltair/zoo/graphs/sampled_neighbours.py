"""Models whose queries name the neighbours that they read: rows of tables, summed, weighted or compared.

graphsage   means over sampled neighbours of two hops (Hamilton et al. 2017), of ogbn-arxiv's size
lightgcn    one propagation from both sides of a user and an item (He et al. 2020), of Gowalla's size
fusedmm     sigmoid messages between the nodes of web-Google (Rahman et al. 2021, Ember's Table 2)
transe      scores of triples (Bordes et al. 2013) of ogbl-biokg
"""

from __future__ import annotations

import math

import numpy as np

from veltair.zoo.recommendation.recommender import RecommenderGraph, RecommenderSpec
from veltair.zoo.recommendation.table_sizes import EmbeddingTable

MAX_BATCH = 256
# GraphSAGE: sampled neighbours of a node, and of each of these (section 4: S1 = 25, S2 = 10).
NEAR, FAR = 25, 10
PAPERS, FEATURES, HIDDEN, CLASSES = 169_343, 128, 256, 40
USERS, ITEMS, INTERACTIONS, FACTORS = 29_858, 40_981, 32, 64
PAGES, MESSAGES, PAGE_DIM = 916_428, 16, 128
ENTITIES, RELATIONS, TRIPLE_DIM = 93_773, 51, 512


def _graphsage(g: RecommenderGraph) -> tuple[str, int]:
    """nodes int64 (n,), near (n, 25), far (n, 250) -> logits float32 (n, 40).

    Row 10 i to 10 i + 9 of `far` are the neighbours of the ith of `near`.
    """
    nodes, near, far = g.ids("nodes"), g.ids("near", NEAR), g.ids("far", NEAR * FAR)
    flat = g.node("Reshape", [near, g.constant("every_node", np.array([-1]))], "near.flat")
    beyond = g.node("Reshape", [far, g.constant("every_bag", np.array([-1, FAR]))], "far.bags")
    own, own_near = g.rows("papers", nodes, "nodes.rows"), g.rows("papers", flat, "near.rows")

    def mean(ids: str, name: str) -> str:
        return g.node("ReduceMean", [g.rows("papers", ids, f"{name}.picked")], f"{name}.mean", axes=[1], keepdims=0)

    widths = {"layer_0": (FEATURES, HIDDEN), "layer_1": (HIDDEN, CLASSES)}
    for name, (width, outputs) in widths.items():  # both uses of the first layer have the same weights
        g.constant(f"{name}.weight", g.normal((2 * width, outputs), math.sqrt(1 / width)))
        g.constant(f"{name}.bias", g.normal((outputs,), 0.1))

    def layer(rows: str, others: str, weights: str, name: str) -> str:
        both = g.node("Concat", [rows, others], f"{name}.both", axis=1)
        return g.node(
            "Add", [g.node("MatMul", [both, f"{weights}.weight"], f"{name}.product"), f"{weights}.bias"], name
        )

    inner = g.node("Relu", [layer(own, mean(near, "near"), "layer_0", "nodes.layer_0")], "nodes.hidden")
    outer = g.node("Relu", [layer(own_near, mean(beyond, "far"), "layer_0", "near.layer_0")], "near.hidden")
    bags = g.node("Reshape", [outer, g.constant("of_each_node", np.array([-1, NEAR, HIDDEN]))], "near.hidden.bags")
    around = g.node("ReduceMean", [bags], "near.hidden.mean", axes=[1], keepdims=0)
    return layer(inner, around, "layer_1", "logits"), CLASSES


def _lightgcn(g: RecommenderGraph) -> tuple[str, int]:
    """user, item int64 (n,), user_items, item_users (n, 32), their weights float32 (n, 32) -> probability (n, 1).

    Weights are 1 / sqrt(degree * degree), and 0 for the rest of a shorter list.
    """
    sides = []
    for side, other in (("user", "item"), ("item", "user")):
        own = g.rows(f"{side}s", g.ids(side), f"{side}.own")
        rows = g.rows(f"{other}s", g.ids(f"{side}_{other}s", INTERACTIONS), f"{side}.near")
        weights = g.floats(f"{side}_weights", INTERACTIONS)
        column = g.node("Unsqueeze", [weights, g.axis(-1)], f"{side}.column")
        near = g.total(g.node("Mul", [rows, column], f"{side}.weighted"), f"{side}.around")
        sides.append(g.node("Add", [own, near], f"{side}.both"))
    product = g.node("Mul", sides, "product")
    return g.node("Sigmoid", [g.node("ReduceSum", [product, g.axis(1)], "likeness", keepdims=1)], "probability"), 1


def _fusedmm(g: RecommenderGraph) -> tuple[str, int]:
    """nodes int64 (n,), near (n, 16) -> messages float32 (n, 128): sums of sigmoid(h_i . h_j) h_j."""
    nodes, near = g.ids("nodes"), g.ids("near", MESSAGES)
    rows = g.rows("pages", near, "rows")
    own = g.node("Unsqueeze", [g.rows("pages", nodes, "own_row"), g.axis(1)], "own")
    likeness = g.node("ReduceSum", [g.node("Mul", [rows, own], "products"), g.axis(-1)], "likeness", keepdims=1)
    weighed = g.node("Mul", [g.node("Sigmoid", [likeness], "edges"), rows], "weighed")
    return g.total(weighed, "messages"), PAGE_DIM


def _transe(g: RecommenderGraph) -> tuple[str, int]:
    """heads, kinds, tails int64 (n,) -> score float32 (n, 1): -|head + relation - tail| in norm 1."""
    head, tail = (g.rows("entities", g.ids(name), f"{name}.rows") for name in ("heads", "tails"))
    moved = g.node("Add", [head, g.rows("relations", g.ids("kinds"), "kinds.rows")], "moved")
    gap = g.node("Abs", [g.node("Sub", [moved, tail], "gap")], "size")
    negative = g.node("Neg", [g.total(gap, "distance")], "negative")
    return g.node("Unsqueeze", [negative, g.axis(1)], "score"), 1


GRAPHSAGE = RecommenderSpec(
    "graphsage", (EmbeddingTable("papers", PAPERS, FEATURES, math.sqrt(3)),), _graphsage, qos_ms=100, max_batch=64
)
LIGHTGCN = RecommenderSpec(
    "lightgcn",
    (EmbeddingTable("users", USERS, FACTORS, 0.2), EmbeddingTable("items", ITEMS, FACTORS, 0.2)),
    _lightgcn,
    qos_ms=10,
    max_batch=MAX_BATCH,
)
FUSEDMM = RecommenderSpec(
    "fusedmm", (EmbeddingTable("pages", PAGES, PAGE_DIM, 0.25),), _fusedmm, qos_ms=10, max_batch=MAX_BATCH
)
TRANSE = RecommenderSpec(
    "transe",
    (EmbeddingTable("entities", ENTITIES, TRIPLE_DIM, 0.5), EmbeddingTable("relations", RELATIONS, TRIPLE_DIM, 0.5)),
    _transe,
    qos_ms=10,
    max_batch=MAX_BATCH,
)

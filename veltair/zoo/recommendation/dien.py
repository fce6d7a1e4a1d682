"""DIEN (Zhou et al. 2019) on Amazon's book reviews, as DeepRec's model zoo trains it, at AtRec's widths.

A GRU runs over the items of a history, attention compares each of its states with the candidate item, and a GRU whose
update gate is scaled by attention (AUGRU) computes the interest. An id of 0 ends a history.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import helper

from veltair.zoo.recommendation.augru import augru
from veltair.zoo.recommendation.description_text import DescriptionEntries, DescriptionEntry
from veltair.zoo.recommendation.recommender import RecommenderGraph, RecommenderSpec
from veltair.zoo.recommendation.table_sizes import EmbeddingTable

STEPS, DIM = 50, 4
HIDDEN = 2 * DIM  # an item's row and its category's
ATTENTION, TOP = (80, 40), (200, 80)
TABLES = {
    "users": 543_060,
    "items": 367_983,
    "categories": 1_601,
}  # ids in the data set, as DIEN's authors counted
MASKED = -4294967295.0  # score before the softmax of a step without an item: -2**32 + 1
SLOPE = 0.1
SEPARATOR = "\x02"
HISTORY_BYTES = 1024  # longest text of a history


def _build(g: RecommenderGraph) -> tuple[str, int]:
    """user, item, category int64 (n,), history_item, history_category int64 (n, 50) -> probability float32 (n, 1)."""
    user = g.rows("users", g.ids("user"), "user.row")
    item = _item(g, g.ids("item"), g.ids("category"), "query", axis=1)
    ids = g.ids("history_item", STEPS)
    none = g.constant("no_item", np.array(0, np.int64))
    seen = g.node("Greater", [ids, none], "history.seen")
    mask = g.node("Cast", [seen], "history.mask", to=1)
    rows = _item(g, ids, g.ids("history_category", STEPS), "history.rows", axis=2)
    history = g.node("Mul", [rows, g.node("Unsqueeze", [mask, g.axis(2)], "history.column")], "history")
    states = _gru(g, history)
    weights = g.node("Unsqueeze", [_attention(g, item, states, seen), g.axis(2)], "attention.column")
    interest = augru("interest", states, weights, HIDDEN, HIDDEN, g.rng)
    g.nodes.extend(interest.nodes)
    g.initializers.extend(interest.initializers)
    last = _last(g, mask, interest.states)
    total = g.total(history, "history.total")
    parts = [user, item, total, g.node("Mul", [item, total], "agreement"), last]
    x = g.node("Concat", parts, "parts", axis=1)
    widths = (DIM, HIDDEN, HIDDEN, HIDDEN, HIDDEN)
    variance = np.repeat([1, 1, STEPS, STEPS, 0.1], widths)
    x = g.norm(x, "parts.norm", np.zeros(variance.size), variance)
    x = g.tower(x, "top", (sum(widths), *TOP))
    return g.score(g.linear(x, "top.2", TOP[-1], 2), "top.3", 2), 1


def _item(g: RecommenderGraph, item: str, category: str, name: str, axis: int) -> str:
    """The rows of item and category, concatenated."""
    rows = [g.rows("items", item, f"{name}.item"), g.rows("categories", category, f"{name}.category")]
    return g.node("Concat", rows, name, axis=axis)


def _gru(g: RecommenderGraph, x: str) -> str:
    """States (n, 50, 8) of a GRU over x, initialised as TensorFlow's GRUCell: biases of the gates are one."""
    bound = math.sqrt(6 / (2 * HIDDEN + HIDDEN))
    weights = [g.rng.uniform(-bound, bound, (1, 3 * HIDDEN, HIDDEN)).astype(np.float32) for _ in range(2)]
    bias = np.concatenate([np.ones(2 * HIDDEN), np.zeros(4 * HIDDEN)]).astype(np.float32)[None]
    names = [g.constant(f"gru.{key}", value) for key, value in (("w", weights[0]), ("r", weights[1]), ("b", bias))]
    steps = g.node("Transpose", [x], "gru.steps", perm=[1, 0, 2])
    g.nodes.append(helper.make_node("GRU", [steps, *names], ["gru.all"], name="/gru.all", hidden_size=HIDDEN))
    one = g.node("Squeeze", ["gru.all", g.axis(1)], "gru.forward")
    return g.node("Transpose", [one], "gru", perm=[1, 0, 2])


def _attention(g: RecommenderGraph, item: str, states: str, seen: str) -> str:
    """Attention weights (n, 50) of the states: a small network over query, state, difference and product."""
    slope = g.constant("attention.slope", np.full(HIDDEN, SLOPE, np.float32))
    query = g.node("PRelu", [g.linear(item, "attention.linear", HIDDEN, HIDDEN), slope], "attention.query")
    times = g.constant("attention.times", np.array([1, STEPS, 1], np.int64))
    queries = g.node("Tile", [g.node("Unsqueeze", [query, g.axis(1)], "attention.row"), times], "attention.queries")
    difference = g.node("Sub", [queries, states], "attention.difference")
    product = g.node("Mul", [queries, states], "attention.product")
    x = g.node("Concat", [queries, states, difference, product], "attention.pairs", axis=2)
    width = 4 * HIDDEN
    for i, out in enumerate((*ATTENTION, 1)):
        weight = g.constant(f"attention.{i}.weight", g.normal((width, out), math.sqrt(2 / width)))
        bias = g.constant(f"attention.{i}.bias", g.normal((out,), 0.1))
        x = g.node("Add", [g.node("MatMul", [x, weight], f"attention.{i}.product"), bias], f"attention.{i}")
        if out > 1:
            x = g.node("Sigmoid", [x], f"attention.{i}.sigmoid")
        width = out
    scores = g.node("Squeeze", [x, g.axis(2)], "attention.scores")
    masked = g.constant("attention.masked", np.array(MASKED, np.float32))
    return g.node("Softmax", [g.node("Where", [seen, scores, masked], "attention.seen")], "attention", axis=-1)


def _last(g: RecommenderGraph, mask: str, states: str) -> str:
    """The state (n, 8) at the last item of each history; zeros for an empty one.

    Later steps do not change it, so the recurrences run to the end at any length.
    """
    ends = [g.constant(f"next.{key}", np.array([end], np.int64)) for key, end in (("from", 1), ("to", STEPS))]
    pads = g.constant("next.pads", np.array([0, 0, 0, 1], np.int64))
    later = g.node("Pad", [g.node("Slice", [mask, *ends, g.axis(1)], "next.items"), pads], "next")
    chosen = g.node("Unsqueeze", [g.node("Sub", [mask, later], "last.mask"), g.axis(1)], "last.row")
    return g.node("Squeeze", [g.node("MatMul", [chosen, states], "last.state"), g.axis(1)], "last")


def _describe(tables: Mapping[str, EmbeddingTable]) -> DescriptionEntries:
    """A description that hashes every input from text, as logs store it; id 0 stays free for "no item"."""
    single = {"user": "users", "item": "items", "category": "categories"}
    sequences = {"history_item": "items", "history_category": "categories"}
    history: DescriptionEntry = {
        "kind": "tokens",
        "separator": SEPARATOR,
        "truncate": STEPS,
        "max_bytes": HISTORY_BYTES,
    }
    features: list[DescriptionEntry] = [
        *({"name": name, "kind": "string", "max_bytes": 32} for name in single),
        *({"name": name, **history} for name in sequences),
    ]
    columns: list[DescriptionEntry] = [
        *({"feature": name, "hash": tables[table].rows - 1, "first_id": 1} for name, table in single.items()),
        *(
            {"feature": name, "hash": tables[table].rows - 1, "first_id": 1, "combiner": "sequence"}
            for name, table in sequences.items()
        ),
    ]
    inputs: list[DescriptionEntry] = [{"name": name, "columns": [name]} for name in (*single, *sequences)]
    return {"features": features, "columns": columns, "inputs": inputs}


DIEN = RecommenderSpec(
    "dien",
    tuple(EmbeddingTable(name, rows, DIM, math.sqrt(3)) for name, rows in TABLES.items()),
    _build,
    qos_ms=25,
    max_batch=1024,
)
DIEN_STRINGS = replace(DIEN, name="dien_strings", describe=_describe, own_tables=True)

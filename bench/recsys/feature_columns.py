"""The feature columns of `bench.recsys.columns`: their kinds, tables and raw features. Needs numpy alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

THREADS = 2
LARGE_ROWS = 1 << 20  # of the five large tables; the paper has 2**23
EDGES = np.linspace(-2.5, 2.5, 96).astype(np.float32)


class ColumnSet(NamedTuple):
    """A set of columns by kind, and the sizes of their tables."""

    kinds: tuple[tuple[str, int], ...]  # kind and number of columns
    batches: tuple[int, ...]
    buckets: int  # rows of a table behind a hash
    dim: int
    tokens: tuple[int, int]  # of a token list, at least and below


class SyntheticColumn(NamedTuple):
    """One column: a raw feature, and the table that it looks up."""

    name: str
    kind: str
    rows: int
    dim: int


COLUMN_SETS = {
    "recom-e": ColumnSet(
        (("bucket", 880), ("int", 50), ("string", 50), ("tokens", 15), ("large", 5)), (32, 256, 2048), 1000, 8, (1, 11)
    ),
    "history": ColumnSet((("tokens", 12),), (512, 4096), 100_000, 16, (10, 101)),
    "split": ColumnSet((("tokens", 12),), (512, 4096), 1000, 1, (10, 101)),
}


def columns(chosen: ColumnSet) -> Iterator[SyntheticColumn]:
    for kind, count in chosen.kinds:
        for place in range(count):
            rows = {"bucket": len(EDGES) + 1, "large": LARGE_ROWS}.get(kind, chosen.buckets)
            yield SyntheticColumn(f"{kind}{place}", kind, rows, 32 if kind == "large" else chosen.dim)


def tables(chosen: ColumnSet) -> dict[str, Any]:
    """Tables by column, always the same values."""
    chance = np.random.default_rng(1)
    return {name: chance.random((rows, dim), np.float32) - np.float32(0.5) for name, _, rows, dim in columns(chosen)}


def raw_features(chosen: ColumnSet, batch: int) -> dict[str, Any]:
    """Raw features by column, always the same for one batch size."""
    chance = np.random.default_rng(batch)
    words = [b"word%d" % i for i in chance.integers(0, 1 << 30, 4096)]

    def text(kind: str) -> bytes:
        count = 1 if kind == "string" else chance.integers(*chosen.tokens)
        return b";".join(words[i] for i in chance.integers(0, len(words), count))

    found: dict[str, Any] = {}
    for name, kind, _, _ in columns(chosen):
        if kind == "bucket":
            found[name] = chance.standard_normal(batch).astype(np.float32)
        elif kind in ("int", "large"):
            found[name] = chance.integers(0, 1 << 40, batch)
        else:
            found[name] = [text(kind) for _ in range(batch)]
    return found


def timed(run: Callable[[], Any], budget_s: float) -> float:
    """Median time of a call in ms."""
    run()
    times, end = [], time.perf_counter() + budget_s
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 200):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1e3)

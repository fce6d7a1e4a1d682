"""The large embedding tables of `bench.recsys.ember`, and how their look-ups are timed. Needs numpy alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

ID_SETS = 3  # used in turn: a set that was just read lies in a cache


class TableShape(NamedTuple):
    """Tables of `rows` x `dim`, and a query of `batch` bags with `lookups` ids each from every table."""

    tables: int
    rows: int
    dim: int
    lookups: int
    batch: int


SHAPES = {
    "10 x 4M x 32, 100 look-ups": TableShape(10, 4_000_000, 32, 100, 256),
    "RM2: 32 x 500K x 64, 120 look-ups": TableShape(32, 500_000, 64, 120, 64),
}


def timed(run: Callable[[], Any], budget_s: float) -> float:
    """Median time of a call in ms."""
    run()
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 400):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1e3)


def in_turn(*runs: Callable[[], Any]) -> Callable[[], Any]:
    """A function that calls the given ones in turn, one each time."""
    state = [0]

    def run() -> Any:
        state[0] += 1
        return runs[state[0] % len(runs)]()

    return run

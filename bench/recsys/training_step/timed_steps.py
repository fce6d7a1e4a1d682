"""Steps per second of each engine, in a Python with torch; `bench.recsys.training_step` starts it.

    python -m bench.recsys.training_step.timed_steps THREADS TURNS

Prints versions and steps per second as JSON. FBGEMM is left out where it is not installed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch

from bench.recsys.training_step.dien import ENGINES, LR, ROWS, Trainer, draw_batch, make_table

BATCH = 512  # of amz-DIEN (AtRec, table I)
BAG_ROWS, BAG_DIM, BAG_IDS = 1_000_000, 32, 100
AGREE = 1e-3  # losses, and rows after updates, of different engines


def steps_per_s(steps: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """The median of turns, engines in turn; the first does not count."""
    taken: dict[str, list[float]] = {engine: [] for engine in steps}
    for turn in range(turns + 1):
        for engine, step in steps.items():
            start = time.perf_counter()
            step()
            taken[engine] += [time.perf_counter() - start] if turn else []
    return {engine: 1 / median(times) for engine, times in taken.items()}


def dien_steps(engines: list[str]) -> dict[str, Callable[[], Any]]:
    """A step of each engine, whose losses on the same batches agree."""
    batch = draw_batch(BATCH, ROWS, seed=0)
    trainers = {engine: Trainer(engine) for engine in engines}
    losses = {engine: [trainer.step(batch) for _ in range(3)] for engine, trainer in trainers.items()}
    for engine, found in losses.items():
        if max(abs(a - b) for a, b in zip(found, losses["torch"], strict=True)) > AGREE:
            raise SystemExit(f"{engine}: losses {found}, torch's are {losses['torch']}")
    return {engine: lambda trainer=trainer: trainer.step(batch) for engine, trainer in trainers.items()}


def bag_steps(engines: list[str]) -> dict[str, Callable[[], Any]]:
    """Sums, gradients and the update of one large table alone."""
    ids = torch.randint(0, BAG_ROWS, (BATCH, BAG_IDS))
    given = torch.randn(BATCH, BAG_DIM)
    tables = {engine: make_table(engine, BAG_ROWS, BAG_DIM) for engine in engines}
    first = tables["torch"].weight.detach().clone()

    def step(table: Any) -> None:
        table(ids).backward(given)
        if hasattr(table, "update"):
            table.update()

    for engine, table in tables.items():
        with torch.no_grad():
            table.weight.copy_(first)
        step(table)
        if (table.weight - tables["torch"].weight).abs().max() > AGREE * LR:
            raise SystemExit(f"{engine}: other rows than torch's after an update")
    return {engine: lambda table=table: step(table) for engine, table in tables.items()}


def main() -> None:
    threads, turns = map(int, sys.argv[1:3])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    versions = {"torch": torch.__version__}
    engines = list(ENGINES)
    if find_spec("fbgemm_gpu") is None:
        engines.remove("fbgemm")
    else:
        import fbgemm_gpu

        versions["fbgemm_gpu"] = fbgemm_gpu.__version__
    order = sorted(engines, key="torch".__ne__)  # torch first: the others are compared with it
    found = {"DIEN": steps_per_s(dien_steps(order), turns), "bags": steps_per_s(bag_steps(order), turns)}
    print(json.dumps({"versions": versions, "steps_per_s": found}))


if __name__ == "__main__":
    main()

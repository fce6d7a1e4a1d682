"""Runs experiments on all cores and says how long it will take.

Results of the same sources are kept, and a run that was interrupted goes on where it was.

Experiments of all figures go through one pool, the longest first, so that no core waits for the last of each figure.
"""

from __future__ import annotations

import hashlib
import json
import signal
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.paths import ROOT, write_whole

KEPT = ROOT / ".build" / "figures"
SOURCES = (
    "scheduler",
    "veltair/simulation",
    "veltair/types.py",
    "compiler/tuning/frontier.py",
    "scenarios",
    "bench/paper/experiments.py",
    "bench/paper/readings.py",
    "bench/policies/seed_peaks.py",
    "bench/paper/version_losses.py",
)
LAYER_BY_LAYER = ("layerwise", "veltair-ac")  # these have a block for each layer: 5 to 7 times the time of others
LINE_S = 30.0  # between two lines of progress where there is no terminal

Call: TypeAlias = tuple[Any, ...]  # a function of `bench.paper.experiments`, and its arguments


def run(calls: Iterable[Call], label: str) -> list[Any]:
    """Returns the results of the calls in their order; those that are not kept are computed."""
    wanted = [tuple(call) for call in calls]
    missing = {path: call for call in wanted if not (path := _result_path(call)).exists()}
    if missing:
        _compute(missing, label)
    return [
        msgspec.json.decode(_result_path(call).read_bytes(), type=get_type_hints(call[0])["return"]) for call in wanted
    ]


def expected_cost(call: Call) -> float:
    """Returns how long a call takes, relative to others.

    >>> from bench.paper.experiments import loaded, peak
    >>> expected_cost((peak, "medium", "layerwise")) > expected_cost((peak, "medium", "veltair"))
    True
    >>> expected_cost((peak, "medium", "veltair")) > expected_cost((loaded, "medium", "veltair", 0.5))
    True
    """
    function, *arguments = call
    names = {str(each).partition("@")[0] for each in arguments}
    return (6.0 if names.intersection(LAYER_BY_LAYER) else 1.0) * (4.0 if function.__name__ == "peak" else 1.0)


def seconds_left(passed_s: float, done: Sequence[Call], missing: Iterable[Call]) -> float | None:
    """Returns how long the rest will take, as long as what is done took by its cost; None before anything is done."""
    spent, total = sum(map(expected_cost, done)), sum(map(expected_cost, missing))
    return passed_s * (total - spent) / spent if spent else None


def _compute(missing: dict[Path, Call], label: str) -> None:
    console, began_s, done, said_s = Console(), time.monotonic(), [], 0.0
    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        ProcessPoolExecutor(
            mp_context=get_context("spawn"), initializer=_leave_signals_to_parent
        ) as pool,  # the bar has a thread
    ):
        task = progress.add_task(label, total=len(missing), left="")
        try:
            longest_first = sorted(missing.items(), key=lambda each: expected_cost(each[1]), reverse=True)
            futures = {pool.submit(call[0], *call[1:]): path for path, call in longest_first}
            for future in as_completed(futures):
                write_whole(futures[future], msgspec.json.encode(future.result()).decode())
                done.append(missing[futures[future]])
                passed_s = time.monotonic() - began_s
                left = _describe_left(seconds_left(passed_s, done, missing.values()))
                progress.update(task, completed=len(done), left=left)
                if not console.is_terminal and (passed_s - said_s >= LINE_S or len(done) == len(missing)):
                    said_s = passed_s
                    print(f"{label}: {len(done)} of {len(missing)} after {passed_s:.0f} s, {left}", flush=True)
        except BaseException:
            for process in active_children():  # a call may take minutes
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _leave_signals_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _describe_left(left_s: float | None) -> str:
    if left_s is None:
        return ""
    return f"about {left_s / 60:.0f} min left" if left_s >= 90 else f"about {left_s:.0f} s left"


def _result_path(call: Call) -> Path:
    function, *arguments = call
    name = hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:20]
    return KEPT / _source_digest() / function.__name__ / f"{name}.json"


@cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    for source in SOURCES:
        top = ROOT / source
        files = sorted(top.rglob("*")) if top.is_dir() else [top]
        for file in files:
            if file.suffix in (".py", ".toml", ".json"):
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:20]

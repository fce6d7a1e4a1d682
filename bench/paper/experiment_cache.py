"""Runs experiments on all cores with a progress bar; results of the same sources are kept and not computed again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.paths import ROOT

KEPT = ROOT / ".build" / "figures"
SOURCES = (
    "scheduler",
    "veltair/simulation",
    "veltair/types.py",
    "compiler/tuning/frontier.py",
    "scenarios",
    "bench/paper/experiments.py",
    "bench/paper/readings.py",
    "bench/paper/version_losses.py",
)
_Result = TypeVar("_Result")


def run(function: Callable[..., _Result], arguments: Iterable[tuple[Any, ...]], label: str) -> list[_Result]:
    """Calls the function with each tuple of arguments and returns the results in the same order."""
    calls = [tuple(each) for each in arguments]
    paths = [_result_path(function, arguments) for arguments in calls]
    missing = {path: arguments for path, arguments in zip(paths, calls, strict=True) if not path.exists()}
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with (
        Progress(*columns) as progress,
        ProcessPoolExecutor(mp_context=get_context("spawn")) as pool,  # the bar has a thread
    ):
        task = progress.add_task(label, total=len(calls), completed=len(calls) - len(missing))
        try:
            futures = {pool.submit(function, *arguments): path for path, arguments in missing.items()}
            for future in as_completed(futures):
                _write(futures[future], future.result())
                progress.advance(task)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    kind = get_type_hints(function)["return"]
    return [msgspec.json.decode(path.read_bytes(), type=kind) for path in paths]


def _result_path(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Path:
    name = hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:20]
    return KEPT / _source_digest() / function.__name__ / f"{name}.json"


def _write(path: Path, found: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(found))
    draft.replace(path)


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

"""Experiments on all cores, with a bar; what the same sources have found before is kept, and not run again."""

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

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".build" / "figures"
SOURCES = (
    "scheduler", "veltair/simulate", "veltair/types.py", "compiler/frontier.py", "scenarios", "bench/simulated.py",
)  # fmt: skip
_Found = TypeVar("_Found")


def run(function: Callable[..., _Found], asked: Iterable[tuple[Any, ...]], what: str) -> list[_Found]:
    """What the function gives for each tuple of arguments, in their order."""
    every = [tuple(arguments) for arguments in asked]
    paths = [_place(function, arguments) for arguments in every]
    missing = {path: arguments for path, arguments in zip(paths, every, strict=True) if not path.exists()}
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with (
        Progress(*columns) as progress,
        ProcessPoolExecutor(mp_context=get_context("spawn")) as pool,  # the bar has a thread
    ):
        task = progress.add_task(what, total=len(every), completed=len(every) - len(missing))
        try:
            futures = {pool.submit(function, *arguments): path for path, arguments in missing.items()}
            for future in as_completed(futures):
                _keep(futures[future], future.result())
                progress.advance(task)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    kind = get_type_hints(function)["return"]
    return [msgspec.json.decode(path.read_bytes(), type=kind) for path in paths]


def _place(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Path:
    name = hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:20]
    return KEPT / _sources() / function.__name__ / f"{name}.json"


def _keep(path: Path, found: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(found))
    draft.replace(path)


@cache
def _sources() -> str:
    digest = hashlib.sha256()
    for source in SOURCES:
        top = ROOT / source
        files = sorted(top.rglob("*")) if top.is_dir() else [top]
        for file in files:
            if file.suffix in (".py", ".toml", ".json"):
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:20]

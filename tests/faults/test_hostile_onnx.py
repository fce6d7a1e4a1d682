"""Hostile ONNX files for `veltair compile`: each ends in one clear line, exit code 2, and within bounds."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hostile_onnx import HOSTILE

from veltair.cli import main

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]
AT_ONCE = (
    *("noise", "a million nested groups", "a cycle", "a missing initializer", "an unknown operator"),
    *("a name of control characters", "data in /etc/passwd", "dimensions that overflow"),
    *("functions that double 40 times", "a constant of 8 GB", "a size that no inference follows"),
    *("a range of 10^12 from a shape", "a range of 10^12 beside a batch"),
)
MOST_BYTES = 3 << 30  # in memory: 1 GB of constants, as much for what computes them, and what the compiler takes
MOST_CPU_S = 120  # the bound of work: only what would not end comes near it
LONGEST_LINE = 8000  # bytes of an error, whatever names the file has


class Ended(NamedTuple):
    """How one compile ended: `Ended(2, "veltair compile: …", 120 << 20)`."""

    code: int  # negative for a signal
    said: str
    bytes: int  # of memory, at most


def compile_alone(folder: Path, name: str) -> Ended:
    """In a process of its own, made from one that has loaded the compiler."""
    made = HOSTILE[name]()
    model, said = folder / "model.onnx", folder / "said"
    model.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with said.open("wb", buffering=0) as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            resource.setrlimit(resource.RLIMIT_AS, (4 * MOST_BYTES, 4 * MOST_BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
            options = ["--trials", "0", "--levels", "model", "--json"]
            code = main(["compile", str(model), "--out", str(folder / "out"), *options])
            sys.stderr.flush()
        finally:
            os._exit(code)
    _, status, usage = os.wait4(pid, 0)
    return Ended(os.waitstatus_to_exitcode(status), said.read_text("utf-8", "replace"), usage.ru_maxrss << 10)


def compile_all(names: list[str], folder: Path) -> dict[str, str]:
    """What is wrong with how each ended; nothing where all ended as they should."""
    import veltair.compiler.build  # noqa: F401  once, for all that are made from this process

    wrong = {}
    for number, name in enumerate(names):
        own = folder / str(number)
        own.mkdir()
        ended = compile_alone(own, name)
        lines = ended.said.splitlines()
        if ended.code != 2 or len(lines) != 1 or not lines[0].startswith("veltair compile: "):
            wrong[name] = f"exit code {ended.code}: {ended.said[:2000]}"
        elif not lines[0].isprintable() or len(lines[0]) > LONGEST_LINE:
            wrong[name] = f"a line of {len(lines[0])} characters: {lines[0][:500]!r}"
        elif ended.bytes > MOST_BYTES:
            wrong[name] = f"{ended.bytes >> 20} MB of memory: {lines[0]}"
        elif left := sorted(file.name for file in own.iterdir() if file.name not in ("model.onnx", "said")):
            wrong[name] = f"left {left}: {lines[0]}"
    return wrong


def test_hostile_files_are_refused(rounds: Rounds, tmp_path: Path) -> None:
    """Fifty hostile ONNX files: each ends in one clear line and exit code 2, in bounded memory, and leaves nothing."""
    names = list(HOSTILE)
    assert len(names) >= 50 and set(AT_ONCE) < set(names)
    chosen = rounds(quick=len(AT_ONCE), full=len(names))
    picked = list(AT_ONCE) if len(chosen) == len(AT_ONCE) else names[: len(chosen)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # without the threads of this one
        assert pool.apply(compile_all, (picked, tmp_path)) == {}

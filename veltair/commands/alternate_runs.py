"""Processes that are timed in turn, so that a noisy minute hits all of them."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rich.progress import Progress, TimeRemainingColumn

from veltair.errors import VeltairError


def race(contestants: Sequence[tuple[str, Sequence[str]]], rounds: int, quiet: bool) -> list[float]:
    """Milliseconds of each: the median over rounds of each turn's median.

    A contestant is what it is called, and a command that says "ready" and answers each line with a turn's median.
    """
    times: list[list[float]] = [[] for _ in contestants]
    progress = Progress(*Progress.get_default_columns()[:-1], TimeRemainingColumn(), disable=quiet)
    with ExitStack() as stack:
        stack.enter_context(progress)
        loaded = progress.track(contestants, description="loading")
        processes = [stack.enter_context(_waiting(name, command)) for name, command in loaded]
        for _ in progress.track(range(rounds), description="timing"):
            for process, found in zip(processes, times, strict=True):
                found.append(float(_ask(process)))
    return [statistics.median(found) for found in times]


@contextmanager
def _waiting(name: str, command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is loaded and waits for its turn."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                process.wait()
                errors.seek(0)
                last = (errors.read().strip().splitlines() or ["no message"])[-1]
                raise VeltairError(f"{name} did not start: {last}")
            yield process
        finally:
            process.kill()
            process.communicate()


def _ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("turn\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise VeltairError(f"an engine died while it was timed (code {process.wait()})")
    return answer

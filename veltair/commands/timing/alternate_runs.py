"""Times several processes in turn, so that a slow minute of the machine hits all of them."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rich.progress import Progress, TimeRemainingColumn

from veltair.errors import VeltairError


class NotStartedError(VeltairError):
    """A process that was to be timed did not start.

    >>> NotStartedError("openvino on 1 threads", "no memory").name
    'openvino on 1 threads'
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} did not start: {why}")
        self.name = name


def run_alternately(processes: Sequence[tuple[str, Sequence[str]]], rounds: int, quiet: bool) -> list[float]:
    """Milliseconds of each process: the median over rounds of the medians of its turns.

    Args:
        processes: the name of each, and a command that prints "ready" and answers each line that it reads with the
            median of one turn in ms.
        rounds: turns of each process.
        quiet: no progress bar.

    Raises NotStartedError where a process does not start, VeltairError where it dies.
    """
    times: list[list[float]] = [[] for _ in processes]
    progress = Progress(*Progress.get_default_columns()[:-1], TimeRemainingColumn(), disable=quiet)
    with ExitStack() as stack:
        stack.enter_context(progress)
        loading = progress.track(processes, description="loading")
        ready = [stack.enter_context(_start(name, command)) for name, command in loading]
        for _ in progress.track(range(rounds), description="timing"):
            for process, turns in zip(ready, times, strict=True):
                turns.append(float(_time_turn(process)))
    return [statistics.median(turns) for turns in times]


@contextmanager
def _start(name: str, command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
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
                raise NotStartedError(name, last)
            yield process
        finally:
            process.kill()
            process.communicate()


def _time_turn(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("turn\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise VeltairError(f"an engine died while it was timed (code {process.wait()})")
    return answer

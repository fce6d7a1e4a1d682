"""Processes that try one small model after the other, with limits of time and memory.

A crash or a case that does not end is seen, and costs itself alone.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from bench.case_outcomes import BAD
from bench.paths import ROOT

MOST_BYTES = 8 << 30  # of memory that a process of cases may take
AT_ONCE = 40  # cases of one process: compilers do not give all memory back
Command = Sequence[str]  # of a worker: a list of names on its input, `ready` and an outcome for each on its output


def try_cases(
    names: Sequence[str], command: Command, seconds: float, jobs: int, out: Path, found: dict[str, Any]
) -> int:
    """Try cases and show how far this is; results are written after each. Returns the exit code.

    found: facts of the results, among them `outcomes` by name, to which new ones are added.
    """
    outcomes: dict[str, str] = found["outcomes"]
    begin = time.monotonic()
    for number, (name, outcome) in enumerate(outcomes_of(names, command, seconds, jobs), 1):
        outcomes[name] = outcome
        found["counts"] = Counter(text.partition(":")[0] for text in outcomes.values())
        draft = out.with_suffix(".draft")
        draft.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        draft.rename(out)
        left = (time.monotonic() - begin) / number * (len(names) - number)
        bar = "#" * (20 * number // len(names))
        print(f"[{bar:<20}] {number}/{len(names)}, {left / 60:.0f} min left  {name}: {outcome}", flush=True)
    counts = Counter(text.partition(":")[0] for text in outcomes.values())
    print(f"of {len(outcomes)}: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return 1 if any(counts[kind] for kind in BAD) else 0


def outcomes_of(names: Sequence[str], command: Command, seconds: float, jobs: int) -> Iterator[tuple[str, str]]:
    """Each case with its outcome, as they end; `jobs` processes try them side by side."""
    parts: SimpleQueue[Sequence[str]] = SimpleQueue()
    for begin in range(0, len(names), AT_ONCE):
        parts.put(names[begin : begin + AT_ONCE])
    answers: SimpleQueue[tuple[str, str]] = SimpleQueue()
    for _ in range(jobs):
        Thread(target=_try_parts, args=(parts, answers, command, seconds), daemon=True).start()
    for _ in names:
        yield answers.get()


def answer(prepare: Callable[[list[str]], Callable[[str], str]]) -> int:
    """A worker's side. `prepare` gives, for the names of all cases, what tries one of them."""
    names = json.loads(sys.stdin.readline())
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what compilers print is no answer
    outcome = prepare(names)
    print("ready", file=answers, flush=True)
    for name in names:
        print(json.dumps(outcome(name)), file=answers, flush=True)
    return 0


def _try_parts(
    parts: SimpleQueue[Sequence[str]], answers: SimpleQueue[tuple[str, str]], command: Command, seconds: float
) -> None:
    """Try part after part; a process that dies or takes too long for a case is replaced."""
    with suppress(Empty):
        while True:
            left = parts.get_nowait()
            while left:
                for pair in _Worker(left, command, seconds).answers():
                    answers.put(pair)
                    left = left[1:]


class _Worker:
    """A process that tries cases one after the other."""

    def __init__(self, names: Sequence[str], command: Command, seconds: float) -> None:
        self._names = names
        self._seconds = seconds
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES)),
        )

    def answers(self) -> Iterator[tuple[str, str]]:
        """Cases with their outcomes, up to the first that crashes or hangs; that one is counted so."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(self._names) + "\n")
            process.stdin.flush()
            process.stdout.readline()  # cases are prepared
            for name in self._names:
                ready, _, _ = select.select([process.stdout], [], [], self._seconds)
                line = process.stdout.readline() if ready else ""
                if not line:
                    yield name, f"crashes: code {process.wait()}" if ready else f"hangs: over {self._seconds:g} s"
                    return
                yield name, json.loads(line)
        finally:
            with suppress(ProcessLookupError):  # it has ended, and left no child
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

"""Processes that try one small model after the other, with limits of time and memory.

A crash or a case that does not end is seen, and costs itself alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from bench.case_outcomes import BAD
from bench.paths import ROOT, write_whole
from veltair.machine.environment import describe_environment

MOST_BYTES = 8 << 30  # of memory that a process of cases may take
AT_ONCE = 40  # cases of one process: compilers do not give all memory back
Command = Sequence[str]  # of a worker: a list of names on its input, `ready` and an outcome for each on its output


def add_options(parser: argparse.ArgumentParser, *, seconds: float) -> None:
    """The options of `try_cases` except the file of results, and `--worker`. `seconds`: of a case, by default."""
    parser.add_argument("--seconds", type=float, default=seconds, help="that a case may take")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that try cases side by side")
    parser.add_argument("--again", action="store_true", help="try what was tried already")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def try_cases(names: Sequence[str], command: Command, args: argparse.Namespace, facts: Mapping[str, Any]) -> int:
    """Try the cases that have no outcome yet and show how far this is. Returns the exit code.

    Results are written to `args.out` after each, with the environment and `facts` beside them.
    """
    found = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {}
    outcomes: dict[str, str] = found.get("outcomes", {})
    found |= {"environment": asdict(describe_environment()), **facts}
    wanted = [name for name in names if args.again or name not in outcomes]
    begin = time.monotonic()
    for number, (name, outcome) in enumerate(outcomes_of(wanted, command, args.seconds, args.jobs), 1):
        outcomes[name] = outcome
        results = {**found, "counts": _counts(outcomes), "outcomes": outcomes}
        write_whole(args.out, json.dumps(results, indent=1) + "\n")
        left = (time.monotonic() - begin) / number * (len(wanted) - number)
        bar = "#" * (20 * number // len(wanted))
        print(f"[{bar:<20}] {number}/{len(wanted)}, {left / 60:.0f} min left  {name}: {outcome}", flush=True)
    counts = _counts(outcomes)
    print(f"of {len(outcomes)}: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return 1 if any(counts[kind] for kind in BAD) else 0


def _counts(outcomes: Mapping[str, str]) -> Counter[str]:
    return Counter(text.partition(":")[0] for text in outcomes.values())


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


def answer(prepare: Callable[[list[str], Path], Callable[[str], str]]) -> int:
    """A worker's side. `prepare` gives, for the names of all cases and a folder, what tries one of them."""
    names = json.loads(sys.stdin.readline())
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what compilers print is no answer
    outcome = prepare(names, Path(tempfile.gettempdir()))
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
                for pair in _answers(left, command, seconds):
                    answers.put(pair)
                    left = left[1:]


def _answers(names: Sequence[str], command: Command, seconds: float) -> Iterator[tuple[str, str]]:
    """Cases with their outcomes from one process, up to the first that crashes or hangs; that one is counted so."""
    with tempfile.TemporaryDirectory() as folder:  # of its temporary files, which it leaves where it is killed
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"TMPDIR": folder},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES)),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(names) + "\n")
            process.stdin.flush()
            process.stdout.readline()  # cases are prepared
            for name in names:
                ready, _, _ = select.select([process.stdout], [], [], seconds)
                line = process.stdout.readline() if ready else ""
                if not line:
                    yield name, f"crashes: code {process.wait()}" if ready else f"hangs: over {seconds:g} s"
                    return
                yield name, json.loads(line)
        finally:
            with suppress(ProcessLookupError):  # it has ended, and left no child
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

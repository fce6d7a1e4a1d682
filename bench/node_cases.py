"""How many of ONNX's own node cases compile, and give ONNX Runtime's results.

    python -m bench.node_cases [--count all|N] [--seed 1] [--names PATTERN,…] [--jobs 1] [--again] [--out FILE]

The cases of `onnx.backend.test` that ONNX Runtime passes and whose tensors are float32, whole numbers or booleans, in a
random order; each is compiled without a search and run, in a process with limits of time and memory, so that a crash or
a case that does not end is seen and costs itself alone. What is refused is named in the results. They are written after
each case, and a run continues where it ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx.backend.test.case.node import collect_testcases

import veltair
from bench.paths import RESULTS, ROOT, result_path
from veltair.compiler.tuning.correctness import largest_errors
from veltair.errors import VeltairError
from veltair.machine.environment import describe_environment

TYPES = {"float32", "int64", "int32", "bool", "uint8", "int8"}
TOLERANCE = 1e-3  # of an output's largest value
MOST_BYTES = 8 << 30  # of memory that a process of cases may take
AT_ONCE = 40  # cases of one process: compilers do not give all memory back
WORKER = (sys.executable, "-m", "bench.node_cases", "--worker")
BAD = ("wrong", "crashes", "hangs", "unnamed")
Case = tuple[str, onnx.ModelProto, dict[str, NDArray[Any]], list[NDArray[Any]]]


def main() -> int:
    args = _arguments()
    if args.worker:
        return _work(args.seed, json.loads(sys.stdin.readline()))
    found: dict[str, Any] = {"outcomes": {}}
    if args.out.exists():
        found = json.loads(args.out.read_text("utf-8"))
    outcomes: dict[str, str] = found["outcomes"]
    warnings.simplefilter("ignore")
    names = [case[0] for case in cases(args.seed)]
    chosen = [name for name in names if any(fnmatch(name, pattern) for pattern in args.names.split(","))][: args.count]
    wanted = [name for name in chosen if args.again or name not in outcomes]
    begin = time.monotonic()
    for number, (name, outcome) in enumerate(_outcomes(wanted, args.seed, args.seconds, args.jobs), 1):
        outcomes[name] = outcome
        counts = Counter(text.partition(":")[0] for text in outcomes.values())
        facts = {"environment": asdict(describe_environment()), "seed": args.seed, "drawn_from": len(names)}
        draft = args.out.with_suffix(".draft")
        draft.write_text(json.dumps({**facts, "counts": counts, "outcomes": outcomes}, indent=1) + "\n", "utf-8")
        draft.rename(args.out)
        left = (time.monotonic() - begin) / number * (len(wanted) - number)
        bar = "#" * (20 * number // len(wanted))
        print(f"[{bar:<20}] {number}/{len(wanted)}, {left / 60:.0f} min left  {name}: {outcome}", flush=True)
    counts = Counter(text.partition(":")[0] for text in outcomes.values())
    print(f"of {len(outcomes)}: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return 1 if any(counts[kind] for kind in BAD) else 0


def cases(seed: int) -> Iterator[Case]:
    """Name, model, inputs and ONNX Runtime's outputs of the cases that count, in a random order."""
    found = sorted(collect_testcases(None), key=lambda case: case.name)
    random.Random(seed).shuffle(found)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for case in found:
        inputs, _ = case.data_sets[0]
        if not all(isinstance(value, np.ndarray | np.generic) for value in inputs):
            continue  # a sequence, or nothing
        feeds = {port.name: np.asarray(value) for port, value in zip(case.model.graph.input, inputs, strict=False)}
        try:
            outputs = ort.InferenceSession(case.model.SerializeToString(), options).run(None, feeds)
        except Exception:  # ONNX Runtime raises its own types
            continue
        arrays = [np.asarray(value) for value in outputs if isinstance(value, np.ndarray | np.generic)]
        if len(arrays) == len(outputs) and {str(a.dtype) for a in (*feeds.values(), *arrays)} <= TYPES:
            yield case.name, case.model, feeds, arrays


def outcome(folder: Path, model: onnx.ModelProto, feeds: dict[str, NDArray[Any]], wanted: list[NDArray[Any]]) -> str:
    """`ours`, `with ONNX Runtime`, or what is wrong or refused, and why."""
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    try:
        artifact = veltair.compile(path, folder / "artifact", trials=0, precision="fp32")
        with veltair.load(artifact) as run:
            found = run({port.name: feeds[port.name] for port in artifact.inputs})
    except VeltairError as error:
        return f"refused: {str(error).replace(str(path), path.name)[:300]}"
    except Exception as error:  # what has no name of ours is what this looks for
        return f"unnamed: {type(error).__name__}: {str(error)[:300]}"
    if fault := difference({port.name: found[port.name] for port in model.graph.output}, wanted):
        return f"wrong: {fault}"
    fallback = any(layer.op == "onnxruntime" for layer in artifact.manifest.layers)
    return "with ONNX Runtime" if fallback else "ours"


def difference(found: Mapping[str, Any], wanted: Iterable[NDArray[Any]]) -> str | None:
    """What differs between outputs by name and those that are right, in the same order."""
    for (name, value), right in zip(found.items(), wanted, strict=True):
        result = np.asarray(value)
        if result.shape != right.shape:
            return f"{name} has shape {result.shape}, expected {right.shape}"
        if result.dtype != right.dtype:
            return f"{name} is {result.dtype}, expected {right.dtype}"
        _, error = largest_errors(result, right)
        if not error <= TOLERANCE:
            return f"{name} is off by {error:.2g} of its largest value"
    return None


def _outcomes(names: list[str], seed: int, seconds: float, jobs: int) -> Iterator[tuple[str, str]]:
    """Each case with its outcome, as they end."""
    parts: SimpleQueue[list[str]] = SimpleQueue()
    for begin in range(0, len(names), AT_ONCE):
        parts.put(names[begin : begin + AT_ONCE])
    answers: SimpleQueue[tuple[str, str]] = SimpleQueue()
    for _ in range(jobs):
        Thread(target=_try_parts, args=(parts, answers, seed, seconds), daemon=True).start()
    for _ in names:
        yield answers.get()


def _try_parts(parts: SimpleQueue[list[str]], answers: SimpleQueue[tuple[str, str]], seed: int, seconds: float) -> None:
    """Try part after part; a process that dies or takes too long for a case is replaced."""
    with suppress(Empty):
        while True:
            left = parts.get_nowait()
            while left:
                for pair in _Worker(left, seed, seconds).answers():
                    answers.put(pair)
                    left = left[1:]


class _Worker:
    """A process that tries cases one after the other."""

    def __init__(self, names: list[str], seed: int, seconds: float) -> None:
        self._names = names
        self._seconds = seconds
        self._process = subprocess.Popen(
            [*WORKER, "--seed", str(seed)],
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
            process.stdout.readline()  # cases are collected
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


def _work(seed: int, names: Iterable[str]) -> int:
    """Print a line for each of the cases named, in their order."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what compilers print is no answer
    wanted = set(names)
    known = {case[0]: case for case in cases(seed) if case[0] in wanted}
    print("ready", file=answers, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            _, model, feeds, right = known[name]
            print(json.dumps(outcome(Path(folder, str(number)), model, feeds, right)), file=answers, flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.node_cases", description="How many of ONNX's node cases work.")
    parser.add_argument("--count", type=lambda text: None if text == "all" else int(text), default=None, metavar="N")
    parser.add_argument("--seed", type=int, default=1, help="of the order in which cases are tried")
    parser.add_argument("--names", default="*", metavar="PATTERN,…", help="of the cases to try (default: all)")
    parser.add_argument("--seconds", type=float, default=120, help="that a case may take")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that try cases side by side")
    parser.add_argument("--again", action="store_true", help="try what was tried already")
    parser.add_argument("--out", type=result_path, default=RESULTS / "node-cases.json")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

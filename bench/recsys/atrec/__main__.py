"""The gains of AtRec's fusions (Wang et al., section IV-C).

    python -m bench.recsys.atrec [--json FILE] [--tensorflow PYTHON]

Each subgraph goes through the compiler twice, as it is and without the fusion in question, and runs on the same
runtime, every layer in its default version; ONNX Runtime runs the same file. GRUs without fusion are the cell as
TensorFlow spells it, concatenations and split included, step after step on inputs that were separated before. Sums of
one-hots have peers that write no one-hots either: ONNX Runtime's scatter-add and numpy's bincount; and TensorFlow, in a
Python of its own, on which the paper's gain of 3.5x was measured. All are built first, compared, then timed in turn;
medians and ratios are printed and written as JSON with the environment. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from bench.kernels.compiled_graph import CompiledGraph
from bench.paths import RESULTS, ROOT, result_path
from bench.recsys.atrec.subgraphs import SUBGRAPHS, Subgraph
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.patterns import by_operator
from veltair.compiler.pipeline import lower
from veltair.compiler.stitch.fusion_explorer import FusionExplorer
from veltair.machine.environment import describe_environment
from veltair.machine.topology import usable_machine
from veltair.profiles.runtime.pinned_threads import PinnedThreads

THREADS = 2
ROUNDS = 15
SETTLE_S = 0.02  # after ONNX Runtime, whose threads go on spinning for a while
TENSORFLOW_TURNS = 3
Peer = Callable[[], Sequence[NDArray[Any]]]
BARS = {"OneHotSum": 3.5, "ConcatSum": 1.45, "GRU": 1.4}


@contextmanager
def without_fusions() -> Iterator[None]:
    """Turns off patterns, and kernels that independent operators share."""
    finders, packed = by_operator.FINDERS, FusionExplorer.packed
    by_operator.FINDERS = ()
    FusionExplorer.packed = lambda self, plan: [[pattern] for pattern in plan]
    try:
        yield
    finally:
        by_operator.FINDERS, FusionExplorer.packed = finders, packed


def compile_ways(case: Subgraph, expected: Sequence[NDArray[Any]], folder: Path) -> dict[str, CompiledGraph]:
    """Compiles fused, unfused and, for a recurrence, with hoisted input products; checks that all agree."""
    rows = len(next(iter(case.feeds.values())))
    fused, unfused = folder / "fused.onnx", folder / "unfused.onnx"
    onnx.save(case.model, fused)
    onnx.save(case.unfused or case.model, unfused)
    graph = lower(load_model(fused, rows), "fp32")
    found = {"fused": CompiledGraph(graph, case.feeds)}
    if any(layer.op == "recurrent" for layer in graph.layers):
        found["hoisted"] = CompiledGraph(graph, case.feeds, 1)
    with without_fusions():
        found["unfused"] = CompiledGraph(lower(load_model(unfused, rows), "fp32"), case.other_feeds or case.feeds)
    for kind, way in found.items():
        way()
        for output, wanted in zip(way.outputs, expected, strict=True):
            error = np.abs(output - wanted).max() / np.abs(wanted).max()
            if not error < 1e-5:
                raise SystemExit(f"{case.kind} {case.name}: {kind} is off by {error:.2g}")
    return found


def session(case: Subgraph, threads: int, model: onnx.ModelProto) -> Callable[[], Sequence[NDArray[Any]]]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    found = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: found.run(None, case.feeds)


def peers_of(case: Subgraph, threads: int) -> dict[str, Peer]:
    """The peers of a subgraph in this process, by name."""
    found: dict[str, Peer] = {"onnxruntime": session(case, threads, case.model)}
    if (counts := case.counts) is not None:
        found["scatter_add"] = session(case, threads, counts.scatter_add)
        found["bincount"] = lambda: [counts.bincount(case.feeds)]
    return found


class TensorFlowProcess:
    """Sums of one-hots by TensorFlow. The process is stopped between its turns: its threads look for work all the time,
    on the cores of the others."""

    def __init__(self, python: str, case: Subgraph, threads: int, folder: Path) -> None:
        assert case.counts is not None
        weights = {} if case.counts.weights is None else {"w": case.counts.weights}
        file = folder / f"feeds-{id(case)}.npz"
        np.savez(file, **case.feeds, **weights)
        command = [
            python,
            "-m",
            "bench.recsys.atrec.tensorflow_one_hots",
            str(threads),
            str(case.counts.depth),
            str(file),
        ]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, text=True, cwd=ROOT, **pipes)
        if self._process.stdout is None or self._process.stdout.readline() != "ready\n":
            raise SystemExit(f"{python}: TensorFlow did not start")
        self._process.send_signal(signal.SIGSTOP)

    def time_us(self) -> float:
        """Median of a turn."""
        assert self._process.stdin and self._process.stdout
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        taken_ms = float(self._process.stdout.readline())
        self._process.send_signal(signal.SIGSTOP)
        return taken_ms * 1000

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def times_us(
    found: Mapping[str, CompiledGraph], peers: Mapping[str, Peer], pool: PinnedThreads, rounds: int
) -> dict[str, float]:
    """Medians of all ways, which run in turn."""
    taken: dict[str, list[float]] = {kind: [] for kind in (*found, *peers)}

    def timed(kind: str, call: Callable[[], object]) -> None:
        call()  # its own data in the caches that hold them, its threads awake
        start = time.perf_counter_ns()
        call()
        taken[kind].append((time.perf_counter_ns() - start) / 1000)

    for _ in range(rounds):
        with pool.kept_awake():
            for kind, way in found.items():
                timed(kind, way)
        for kind, peer in peers.items():
            timed(kind, peer)
            time.sleep(SETTLE_S)
    return {kind: median(t) for kind, t in taken.items()}


def expected_of(peers: Mapping[str, Peer]) -> Sequence[NDArray[Any]]:
    """ONNX Runtime's outputs, with which those of the other peers agree."""
    expected = peers["onnxruntime"]()
    for name, peer in peers.items():
        for output, wanted in zip(peer(), expected, strict=True):
            if not np.abs(output - wanted).max() <= 1e-5 * np.abs(wanted).max():
                raise SystemExit(f"{name} differs from ONNX Runtime")
    return expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=result_path, default=RESULTS / "atrec.json")
    parser.add_argument("--tensorflow", metavar="PYTHON", help="a Python with TensorFlow")
    args = parser.parse_args()
    cores, environment = usable_machine().cores, asdict(describe_environment())  # before the pool pins this thread
    # Sessions come first: their threads inherit this thread's affinity, which the pool is about to narrow.
    runs = [(case, threads) for case in SUBGRAPHS for threads in (THREADS, 1)]
    sessions = {(id(case), threads): peers_of(case, threads) for case, threads in runs}
    others: dict[tuple[int, int], TensorFlowProcess] = {}
    with tempfile.TemporaryDirectory(prefix="veltair-atrec-") as folder:
        for case, threads in runs if args.tensorflow else ():
            if case.counts is not None:
                others[id(case), threads] = TensorFlowProcess(args.tensorflow, case, threads, Path(folder))
        pool = PinnedThreads(cores)
        built = [(case, compile_ways(case, expected_of(sessions[id(case), 1]), Path(folder))) for case in SUBGRAPHS]
    rows: list[dict[str, Any]] = []
    for threads in (THREADS, 1):
        pool.move_to(cores[:threads])
        for case, found in built:
            medians = times_us(found, sessions[id(case), threads], pool, ROUNDS)
            if other := others.get((id(case), threads)):
                medians["tensorflow"] = median(other.time_us() for _ in range(TENSORFLOW_TURNS))
            rows.append(
                {"kind": case.kind, "case": case.name, "threads": threads, "layers": found["unfused"].layers}
                | {f"{kind}_us": round(value, 2) for kind, value in medians.items()}
            )
    for other in others.values():
        other.close()
    print(f"{'':10} {'':42} threads layers    fused  hoisted  unfused      ORT  x unfused   x ORT")
    passed = True
    for row in rows:
        ours = min(row["fused_us"], row.get("hoisted_us", row["fused_us"]))
        gain, bar = row["unfused_us"] / ours, BARS.get(row["kind"], 0.0)
        passed = passed and gain >= bar
        print(
            f"{row['kind']:10} {row['case']:42} {row['threads']:7} {row['layers']:6} {row['fused_us']:8.1f}"
            f" {row.get('hoisted_us', 0):8.1f} {row['unfused_us']:8.1f} {row['onnxruntime_us']:8.1f} {gain:10.2f}"
            f" {row['onnxruntime_us'] / ours:7.2f}{'' if gain >= bar else f'  below {bar:g}'}"
        )
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"rows": rows, "environment": environment}, indent=1) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

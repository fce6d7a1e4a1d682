"""`veltair bench`: an artifact beside ONNX Runtime and OpenVINO, in turn in one run, medians."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn
from rich.table import Table

from veltair.errors import ConfigError
from veltair.machine import environment, machine
from veltair.profiles import core_pool
from veltair.profiles.artifact import Artifact, Port, load

ROUNDS = 5
TURN_S = 0.4  # of timed runs per engine and round


@dataclass(frozen=True, slots=True)
class Contestant:
    engine: str
    precision: str
    threads: int
    run: Callable[[], object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="DIR")
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--against", default="ort,openvino", help="engines, of ort and openvino (default: both)")
    parser.add_argument("--threads", default="1,2", help="thread counts (default: 1,2)")
    parser.add_argument("--batch", type=int, default=1, help="rows, for a model of dynamic batch (default: 1)")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    threads = _threads(args.threads)
    engines = [name for name in args.against.split(",") if name]
    for name in engines:
        if name not in PEERS:
            raise ConfigError(f"--against {name}: expected {' or '.join(PEERS)}")
    artifact = load(args.artifact)
    if not 1 <= args.batch <= artifact.manifest.max_batch:
        raise ConfigError(f"--batch {args.batch}: the artifact takes 1 … {artifact.manifest.max_batch}")
    inputs = [_input(port, args.batch) for port in artifact.manifest.inputs]
    feeds = {port.name: array for port, array in zip(artifact.manifest.inputs, inputs, strict=True)}
    os.environ.update(core_pool.environment(len(machine().cores)))  # before TVM is loaded
    contestants: list[Contestant] = []
    for count in threads:
        contestants.append(_veltair(artifact, inputs, args.batch, count))
        for name in engines:
            contestants.extend(PEERS[name](args.model, feeds, count))
    medians = _race(contestants, quiet=args.json)
    rows = [
        {"engine": c.engine, "precision": c.precision, "threads": c.threads, "median_ms": round(m, 4)}
        for c, m in zip(contestants, medians, strict=True)
    ]
    if args.json:
        where = dataclasses.asdict(environment())
        print(json.dumps({"model": artifact.manifest.model, "batch": args.batch, "rows": rows, "environment": where}))
    else:
        _show(artifact.manifest.model, rows)
    return 0


def _threads(text: str) -> list[int]:
    cores = len(machine().cores)
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--threads {text}: expected numbers with commas between, such as 1,2") from None
    if any(not 1 <= count <= cores for count in counts):
        raise ConfigError(f"--threads {text}: this machine offers 1 … {cores}")
    return counts


def _input(port: Port, batch: int) -> NDArray[Any]:
    random = np.random.default_rng(0)
    shape = tuple(-d * batch if d < 0 else d for d in port.shape)
    if np.issubdtype(np.dtype(port.dtype), np.integer):
        return random.integers(port.low or 0, (port.high or 0) + 1, shape).astype(port.dtype)
    return random.standard_normal(shape).astype(port.dtype)


def _race(contestants: list[Contestant], quiet: bool) -> list[float]:
    """Milliseconds: the median over rounds of each turn's median. In turn, so that a noisy minute hits all."""
    times: list[list[float]] = [[] for _ in contestants]
    with Progress(*Progress.get_default_columns()[:-1], TimeRemainingColumn(), disable=quiet) as progress:
        for _ in progress.track(range(ROUNDS), description="timing"):
            for contestant, found in zip(contestants, times, strict=True):
                found.append(_turn(contestant.run))
    return [statistics.median(found) for found in times]


def _turn(run: Callable[[], object]) -> float:
    run()
    run()  # threads of the last engine have stopped spinning, caches are ours
    taken: list[float] = []
    end = time.perf_counter() + TURN_S
    while time.perf_counter() < end or len(taken) < 5:
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3


def _veltair(artifact: Artifact, inputs: list[NDArray[Any]], batch: int, threads: int) -> Contestant:
    """Each layer in the version that its profile says is fastest alone on that many cores."""
    from veltair.profiles.executor import Executor, empty

    pool = core_pool.CorePool(machine().cores)  # the first use sets how far it can grow
    executor = Executor(artifact)
    at = next(i for i, b in enumerate(artifact.manifest.batches) if b >= batch)
    versions = [
        min(range(len(layer.versions)), key=lambda v: layer.versions[v].latency_ns[at][0][threads - 1])
        for layer in artifact.manifest.layers
    ]
    aligned = []
    for array in inputs:
        copy = empty(array.shape, str(array.dtype))
        copy[...] = array
        aligned.append(copy)
    outputs = [empty(tuple(-d * batch if d < 0 else d for d in p.shape), p.dtype) for p in artifact.manifest.outputs]
    bound = executor.bind(batch, aligned, outputs)
    cores = machine().cores[:threads]

    def once() -> None:
        pool.point(cores)
        for index, version in enumerate(versions):
            bound.layer(index, version)

    return Contestant("veltair", artifact.manifest.precision, threads, once)


def _ort(model: Path, feeds: dict[str, NDArray[Any]], threads: int) -> Iterator[Contestant]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    yield Contestant("onnxruntime", "fp32", threads, lambda: session.run(None, feeds))


def _openvino(model: Path, feeds: dict[str, NDArray[Any]], threads: int) -> Iterator[Contestant]:
    try:
        import openvino
    except ImportError:
        raise ConfigError("OpenVINO is not installed: pip install 'veltair[bench]'") from None
    core = openvino.Core()
    for precision, hint in (("fp32", {"INFERENCE_PRECISION_HINT": "f32"}), ("default", {})):
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **hint}
        request = core.compile_model(str(model), "CPU", settings).create_infer_request()
        yield Contestant("openvino", precision, threads, lambda request=request: request.infer(feeds))  # type: ignore[misc]


PEERS: dict[str, Callable[[Path, dict[str, NDArray[Any]], int], Iterator[Contestant]]] = {
    "ort": _ort,
    "openvino": _openvino,
}


def _show(model: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=model, title_justify="left")
    for column in ("engine", "precision", "threads", "median ms", "veltair / engine"):
        table.add_column(column, justify="left" if column in ("engine", "precision") else "right")
    ours = {row["threads"]: row["median_ms"] for row in rows if row["engine"] == "veltair"}
    for row in rows:
        ratio = "" if row["engine"] == "veltair" else f"{ours[row['threads']] / row['median_ms']:.2f}"
        table.add_row(row["engine"], row["precision"], str(row["threads"]), f"{row['median_ms']:.3f}", ratio)
    Console().print(table)

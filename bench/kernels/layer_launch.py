"""The cost of going from layer to layer: one call per layer on TVM's thread pool or ours, or one call per block.

    python -m bench.kernels.layer_launch [ARTIFACT …] [--seconds 1] [--out bench/results/blocks.json]

Empty parallel layers show the cost itself, a launch after a pause the cost of waking the threads, and the CPU time of
the other threads what they burn after the end of a block. Artifacts run whole, in the versions that are fastest alone.
The three ways run in turn; times are medians, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench.paths import result_path
from veltair.machine.environment import describe_environment
from veltair.machine.topology import usable_machine

if TYPE_CHECKING:
    from veltair.types import CoreSet

LAYERS = 100
PAUSE_S = 0.005
WAYS = ("call a layer, TVM's pool", "call a layer", "call a block")
Calls = dict[str, Callable[[], object]]  # by way


class PinnedTvmPool:
    """TVM's own pool with each thread pinned to a core: the best that its interface allows."""

    def __init__(self, cores: CoreSet) -> None:
        from tvm_ffi import get_global_func

        self._configure = get_global_func("runtime.config_threadpool")
        before = self._tasks()
        self._call(cores)
        self._threads = (0, *(task for task in self._tasks() if task not in before))
        self.point(cores)

    def point(self, cores: CoreSet) -> None:
        self._call(cores)
        for thread, core in zip(self._threads, cores, strict=False):
            os.sched_setaffinity(thread, (core,))

    def _call(self, cores: CoreSet) -> None:
        self._configure(-2, len(cores), [str(core) for core in cores])

    @staticmethod
    def _tasks() -> list[int]:
        return [thread.id for thread in psutil.Process().threads()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifacts", type=Path, nargs="*")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--out", type=result_path)
    args = parser.parse_args()
    cores = usable_machine().cores
    os.environ.update(  # read when TVM is loaded
        TVM_NUM_THREADS=str(len(cores)), TVM_BIND_THREADS="0", TVM_THREAD_POOL_SPIN_COUNT="1000"
    )
    where = asdict(describe_environment())
    with tempfile.TemporaryDirectory() as folder:
        result = _measure(args.artifacts, cores, args.seconds, Path(folder))
    text = json.dumps({**result, "environment": where}, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", "utf-8")
    return 0


def _measure(artifacts: Sequence[Path], cores: CoreSet, seconds: float, folder: Path) -> dict[str, Any]:
    """Loads everything that runs on TVM's pool first, from a copy, because a library has one pool."""
    from veltair.profiles.runtime.pinned_threads import PinnedThreads

    library = _empty_layers(folder)
    copies = [_copy(path, folder / f"{i}-{path.name}") for i, path in enumerate(artifacts)]
    old_empty, old_models = _chain(_copy(library, folder / "tvm.so")), [_model(copy) for copy in copies]
    theirs = PinnedTvmPool(cores)
    ours = PinnedThreads(cores)
    new_empty, new_models = _chain(library), [_model(path) for path in artifacts]
    result: dict[str, Any] = {"layers": LAYERS, "cores": {}}
    for count in range(1, len(cores) + 1):
        theirs.point(cores[:count])
        ours.move_to(cores[:count])
        chains = _ways(old_empty, new_empty, [0] * LAYERS)
        row: dict[str, Any] = {
            "us_per_empty_layer": {w: t / LAYERS for w, t in _in_turn(chains, seconds).items()},
            "us_first_launch_after_a_pause": _in_turn(_ways(old_empty, new_empty, [0]), seconds, PAUSE_S),
            "us_cpu_of_other_threads_after_a_block": _burned(chains, count - 1),
        }
        for path, old, new in zip(artifacts, old_models, new_models, strict=True):
            ways = _ways(old, new, _fastest(new, count))
            row[f"us_{path.name}"] = _in_turn(ways, seconds)
            row[f"us_{path.name}_after_a_pause"] = _in_turn(ways, seconds, PAUSE_S)
        result["cores"][count] = _rounded(row)
    return result


def _rounded(rows: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {way: round(value, 3) for way, value in row.items()} for name, row in rows.items()}


def _in_turn(ways: Calls, seconds: float, pause_s: float = 0.0) -> dict[str, float]:
    """Calls each way in turn and returns its median time."""
    taken: dict[str, list[float]] = {way: [] for way in ways}
    end = time.perf_counter() + seconds * len(ways)
    while time.perf_counter() < end or len(taken[WAYS[-1]]) < 5:
        for way, run in ways.items():
            if not pause_s:
                run()  # its own threads are awake, the others' asleep
                run()
            for _ in range(1 if pause_s else 10):
                time.sleep(pause_s)
                begin = time.perf_counter_ns()
                run()
                taken[way].append((time.perf_counter_ns() - begin) / 1e3)
    return {way: statistics.median(times) for way, times in taken.items()}


def _burned(ways: Calls, others: int, blocks: int = 100) -> dict[str, float]:
    """Mean CPU time that `others` threads use for a block and the pause after it, less the time inside the block."""
    burned = {}
    for way, run in ways.items():
        inside = 0.0
        before = time.process_time() - time.thread_time()
        for _ in range(blocks):
            begin = time.perf_counter()
            run()
            inside += time.perf_counter() - begin
            time.sleep(PAUSE_S)
        used = time.process_time() - time.thread_time() - before
        burned[way] = (used - inside * others) / blocks * 1e6
    return burned


class _LoadedModel:
    """A bound model, its layers, and its kernels and tensors for calls one by one."""

    def __init__(self, table: Any, tensors: dict[int, Any], layers: Sequence[Any], keep: object) -> None:
        self.bound, self.layers, self._keep = table.bind(tensors), layers, keep
        self._table, self._tensors = table, tensors

    def calls(self, versions: Sequence[int]) -> Callable[[], None]:
        """A loop over kernels as functions, as a worker ran them: it reads the cancel flag and writes its progress."""
        kernels = []
        for index, version in enumerate(versions):
            tensors = [self._tensors[a] for a in self.layers[index].versions[version].arguments]
            kernels.append(partial(self._table._kernels[self._table.rows[index][version]], *tensors))
        cell = memoryview(bytearray(16)).cast("Q")

        def run() -> None:
            for layer, kernel in enumerate(kernels):
                if cell[0]:
                    return
                cell[1] = layer
                kernel()

        return run


def _ways(old: _LoadedModel, new: _LoadedModel, versions: Sequence[int]) -> Calls:
    return dict(zip(WAYS, (old.calls(versions), new.calls(versions), new.bound.block(0, versions)), strict=True))


def _empty_layers(folder: Path) -> Path:
    from tvm.script import tirx as T

    from veltair.compiler.shared_library import compile_object, link_library
    from veltair.machine.isa import tvm_target

    @T.prim_func
    def empty(a: T.handle):
        T.func_attr({"global_symbol": "empty", "tirx.noalias": True})
        A = T.match_buffer(a, (64, 16), "float32")
        for i in T.parallel(64):
            A[i, 0] = A[i, 0] + T.float32(1)

    compile_object(empty, "empty", tvm_target(), folder / "empty.o")
    link_library([folder / "empty.o"], folder / "empty.so")
    return folder / "empty.so"


def _chain(library: Path) -> _LoadedModel:
    from tvm import runtime

    from veltair.profiles.artifact.manifest import LayerEntry, VersionEntry
    from veltair.profiles.runtime.block_runner import KernelTable
    from veltair.profiles.runtime.executor import _tensor, aligned_zeros

    layer = LayerEntry("empty", "empty", (), (), (), (), (VersionEntry("empty", (0,), 0, 64, {}, ()),))
    layers = (layer,) * LAYERS
    return _LoadedModel(
        KernelTable(layers, runtime.load_module(str(library))),
        {0: _tensor(aligned_zeros((64, 16), "float32"))},
        layers,
        None,
    )


def _model(path: Path) -> _LoadedModel:
    from veltair.commands.timing.engine_process import draw_input
    from veltair.profiles.artifact.artifact_folder import load_artifact
    from veltair.profiles.runtime.executor import Executor, aligned_zeros

    executor = Executor(load_artifact(path))
    manifest = executor.manifest
    inputs = []
    for port in manifest.inputs:
        array = draw_input(port, 1)
        inputs.append(aligned_zeros(array.shape, str(array.dtype)))
        inputs[-1][...] = array
    outputs = [aligned_zeros(tuple(-d if d < 0 else d for d in p.shape), p.dtype) for p in manifest.outputs]
    run = executor.bind(1, inputs, outputs)
    return _LoadedModel(executor._kernels, run._tensors, manifest.layers, (executor, run))


def _fastest(loaded: _LoadedModel, cores: int) -> list[int]:
    """The version of each layer that is fastest alone at batch 1."""
    times = [[version.latency_ns[0][0][cores - 1] for version in layer.versions] for layer in loaded.layers]
    return [row.index(min(row)) for row in times]


def _copy(source: Path, target: Path) -> Path:
    """A copy with libraries of its own; the loader would take a link for the same file."""
    return Path(shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target))


if __name__ == "__main__":
    raise SystemExit(main())

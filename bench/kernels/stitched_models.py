"""Whole models and their memory-bound parts: the fastest ways, stitching packed, apart and off; ONNX Runtime and XLA.

    python -m bench.kernels.stitched_models [--models NAME | FILE.onnx …] [--work DIR] [--trials N] [--compile-only]
                                            [--tensorflow PYTHON] [--json FILE]

Models of the zoo, `transformer` and `crnn` by name, and any ONNX files. Each is compiled four times in fp32: `chosen`
(as served: the ways of each layer compete), `packed` (small independent patterns share kernels), `apart` (a kernel for
each pattern) and `off` (TVM's own fusion), and run on all cores in this process, in turn with ONNX Runtime. `layers`
counts what is left of the model, `memory_bound` what is no product, convolution, attention or look-up.

The memory-bound parts of a model (`bench.kernels.memory_bound_parts`) are compiled by themselves, `chosen` and `off`,
and their kernels counted. Their times are those of the artifact, of ONNX Runtime and of XLA (`--tensorflow` names a
Python that has TensorFlow), from which the time of a call that does nothing is taken.

Bars: `chosen` no slower than any other way and than ONNX Runtime; its parts 1.39 times faster than XLA's, in 38 % of
its kernels. `--compile-only` leaves out all that is timed here, for which nothing else may run. Artifacts in the folder
are used again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort

import veltair
from bench.kernels.memory_bound_parts import MemoryBoundPart, import_parts, memory_bound_parts, write_parts
from bench.kernels.stitched_networks import NETWORKS
from bench.paths import result_path
from bench.recsys.embedding_tables import timed
from veltair.compiler.build import compile_model
from veltair.compiler.graph.graph_builder import NodeImporter
from veltair.compiler.kernels.generic.relax_layers import import_layers
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.stitch.alternatives import ALTERNATIVES
from veltair.compiler.stitch.regions import import_region
from veltair.compiler.stitch.stitch_program import StitchOp
from veltair.compiler.tuning.implementation_choice import Alternatives
from veltair.compiler.tuning.kernel_cache import KernelCache
from veltair.machine.environment import describe_environment
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.cache.cache_folder import CacheFolder
from veltair.types import TensorSpec
from veltair.zoo.registry import ZOO, write

MODELS = ("bert_base", "dien", "bigbird", *NETWORKS)


class Way(NamedTuple):
    """How a model is compiled."""

    importer: NodeImporter
    alternatives: Alternatives


WAYS: Mapping[str, Way] = {
    "chosen": Way(import_region, ALTERNATIVES),
    "packed": Way(import_region, {}),
    "apart": Way(partial(import_region, packing=False), {}),
    "off": Way(import_layers, {}),
}
PART_WAYS = {way: WAYS[way]._replace(importer=partial(import_parts, WAYS[way].importer)) for way in ("chosen", "off")}
MEMORY_BOUND = (
    "stitched",
    "generic",
    "layer_norm",
    "group_norm",
    "resize",
    "elementwise",
    "copy",
    "cast",
    "concat_rows",
    "transpose",
    "squeeze_excite",
)
ROUNDS, BUDGET_S = 5, 1.0
TOLERANCE = 1e-3
MOST_QUERIES = 64
TIME_BAR, KERNEL_BAR, NOISE = 1.39, 0.38, 1.02
NOTHING = MemoryBoundPart(
    name="nothing",
    nodes=[onnx.helper.make_node("Neg", ["x"], ["y"], "nothing")],
    ops=[StitchOp("y", "neg", ("x",), (1,))],
    constants={},
    inputs=[TensorSpec("x", "float32", (1,))],
    outputs=[TensorSpec("y", "float32", (1,))],
    opset=17,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), metavar="NAME | FILE.onnx")
    parser.add_argument("--work", type=Path, default=Path("stitched-models"))
    parser.add_argument("--trials", type=int, help="see veltair compile")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--tensorflow", metavar="PYTHON")
    parser.add_argument("--json", type=result_path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"environment": asdict(describe_environment()), "models": {}}
    for name in options.models:
        path = Path(name) if name.endswith(".onnx") else options.work / f"{name}.onnx"
        if name in NETWORKS and not path.exists():
            NETWORKS[name](path)
        elif name in ZOO and not path.exists():
            write(name, path)
        if not path.exists():
            raise SystemExit(f"{name}: neither a model of the zoo, nor one of {', '.join(NETWORKS)}, nor a file")
        compiled = CompiledModel(path, options.work, options.trials)
        if options.compile_only:
            continue
        result["models"][path.stem] = found = compiled.compare() | {"parts": compiled.compare_parts(options.tensorflow)}
        print(f"{path.stem}:", *(f"{way} {ms:.3f} ms" for way, ms in found["ms"].items()), flush=True)
        for line in verdicts(found):
            print(f"  {line}", flush=True)
    if options.json and not options.compile_only:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def verdicts(found: Mapping[str, Any]) -> list[str]:
    """What the bars say about a model."""
    ms, parts = found["ms"], found["parts"]
    best = min(time for way, time in ms.items() if way != "chosen")
    word = "held" if ms["chosen"] <= best * NOISE else "MISSED"
    lines = [f"end to end {best / ms['chosen']:.2f}x the fastest other way; bar 1: {word}"]
    kernels, times = parts["kernels"], parts["ms"]
    line = f"{len(parts['counts'])} kinds of memory-bound parts, ms and kernels: "
    lines.append(line + ", ".join(f"{way} {times[way]:.3f} in {kernels.get(way, '?')}" for way in times))
    if "xla" not in times:
        return [
            *lines,
            f"XLA is not measured (--tensorflow); bars {TIME_BAR}x its time, {KERNEL_BAR:.0%} of its kernels",
        ]
    gain, share = times["xla"] / times["chosen"], kernels["chosen"] / kernels["xla"]
    for name, value, bar, held in (
        ("XLA's time over ours", gain, TIME_BAR, gain >= TIME_BAR),
        ("our kernels over XLA's", share, KERNEL_BAR, share <= KERNEL_BAR),
    ):
        lines.append(f"{name}: {value:.2f}; bar {bar}: {'held' if held else 'MISSED'}")
    return lines


class CompiledModel:
    """A model compiled in each way, and its memory-bound parts; what the folder has is used again.

    ::

        CompiledModel(Path("dien.onnx"), Path("work"), trials=None).compare()["ms"]["chosen"]
    """

    def __init__(self, path: Path, work: Path, trials: int | None) -> None:
        self.path, self._work, self._trials = path, work, trials
        self._threads = len(usable_machine().cores)
        self._cache = KernelCache(CacheFolder(work / "cache"))
        self._folders = {way: self._compile(path, f"{path.stem}-{way}", how) for way, how in WAYS.items()}
        self.batch = min(load_artifact(self._folders["off"]).manifest.max_batch, MOST_QUERIES)
        self.parts = memory_bound_parts(load_model(path), self.batch)
        joined = work / f"{path.stem}-parts.onnx"
        write_parts(self.parts, joined)
        self._part_folders = {way: self._compile(joined, f"{joined.stem}-{way}", how) for way, how in PART_WAYS.items()}

    def _compile(self, path: Path, name: str, way: Way) -> Path:
        folder = self._work / name
        if not folder.is_dir():
            print(f"{name}: compiling", flush=True)
            options: dict[str, Any] = {"precision": "fp32", "trials": self._trials, "cache": self._cache}
            compile_model(path, folder, importer=way.importer, alternatives=way.alternatives, **options)
        return folder

    def compare(self) -> dict[str, Any]:
        """Layers of each way, and medians in ms of each way and of ONNX Runtime, on all cores."""
        counts = {}
        for way, folder in self._folders.items():
            layers = [layer.op for layer in load_artifact(folder).manifest.layers]
            counts[way] = {"layers": len(layers), "memory_bound": sum(op in MEMORY_BOUND for op in layers)}
        session = _session(self.path, self._threads)
        with ExitStack() as stack:
            models = {w: stack.enter_context(veltair.load(f, threads=self._threads)) for w, f in self._folders.items()}
            feeds = feeds_of(load_artifact(self._folders["off"]), self.batch)
            runs: dict[str, Callable[[], Any]] = {way: partial(model, feeds) for way, model in models.items()}
            runs["onnxruntime"] = partial(session.run, None, feeds)
            for way, model in models.items():
                check(f"{self.path.stem}, {way}", model(feeds), session, feeds)
            turns: dict[str, list[float]] = {way: [] for way in runs}
            for first in range(ROUNDS):  # each is first once: ONNX Runtime's threads spin on for a while
                for way in [*runs, *runs][first : first + len(runs)]:
                    turns[way].append(timed(runs[way], BUDGET_S))
        ms = {way: float(np.median(times)) for way, times in turns.items()}
        return {"counts": counts, "ms": ms, "batch": self.batch, "threads": self._threads}

    def compare_parts(self, tensorflow: str | None) -> dict[str, Any]:
        """Kernels and ms of all memory-bound parts of the model, each as often as it is there."""
        times: dict[str, list[float]] = {}
        kernels: dict[str, list[int]] = {}
        for way, folder in self._part_folders.items():
            artifact = load_artifact(folder)
            with veltair.load(folder, threads=self._threads) as model:
                session = _session(self._work / f"{self.path.stem}-parts.onnx", self._threads)
                feeds = feeds_of(artifact, 1)
                check(f"parts of {self.path.stem}, {way}", model(feeds), session, feeds)
            layers = artifact.manifest.layers
            own = [[layer for layer in layers if layer.name.startswith(f"{p.name}/")] for p in self.parts]
            kernels[way] = [len(found) for found in own]
            times[way] = [
                sum(min(version.latency_ns[-1][0][self._threads - 1] for version in layer.versions) for layer in found)
                / 1e6
                for found in own
            ]
        times["onnxruntime"] = above_the_first(self._time_onnxruntime())
        if tensorflow:
            found = self._time_xla(tensorflow)
            times["xla"] = above_the_first([row["ms"] for row in found])
            kernels["xla"] = [row["kernels"] for row in found[1:]]
        counts = [part.count for part in self.parts]
        return {
            "counts": counts,
            "ms": {way: float(np.dot(counts, each)) for way, each in times.items()},
            "kernels": {way: int(np.dot(counts, each)) for way, each in kernels.items()},
            "each": {"ms": times, "kernels": kernels},
        }

    def _time_onnxruntime(self) -> list[float]:
        """Ms of a call that does nothing, then of each part."""
        found, single, rng = [], self._work / "part.onnx", np.random.default_rng(0)
        for part in (NOTHING, *self.parts):
            write_parts([part], single)
            session = _session(single, self._threads)
            binding = session.io_binding()
            for port in part.inputs:
                binding.bind_cpu_input(port.name, (rng.standard_normal(port.shape) * 4).astype(port.dtype))
            for port in part.outputs:
                output = ort.OrtValue.ortvalue_from_numpy(np.zeros(port.shape, port.dtype))
                binding.bind_ortvalue_output(port.name, output)
            found.append(timed(partial(session.run_with_iobinding, binding), BUDGET_S))
        return found

    def _time_xla(self, python: str) -> list[dict[str, Any]]:
        """The rows of `bench.kernels.xla_parts`: first of a call that does nothing, then of each part."""
        descriptions = [part.describe() for part in (NOTHING, *self.parts)]
        files = [self._work / f"part-{i}.json" for i in range(len(descriptions))]
        for file, described in zip(files, descriptions, strict=True):
            file.write_text(json.dumps(described))
        command = [python, "-m", "bench.kernels.xla_parts", str(self._threads), *map(str, files)]
        root = str(Path(__file__).parents[2])
        made = subprocess.run(command, env=os.environ | {"PYTHONPATH": root}, stdout=subprocess.PIPE, check=True)
        return [json.loads(line) for line in made.stdout.splitlines()]


def above_the_first(times: list[float]) -> list[float]:
    """The times behind the first one, without it."""
    return [max(ms - times[0], 0.0) for ms in times[1:]]


def feeds_of(artifact: veltair.Artifact, batch: int) -> dict[str, Any]:
    """Random inputs; ids within their bounds."""
    rng, found = np.random.default_rng(0), dict[str, Any]()
    for port in artifact.manifest.inputs:
        shape = [batch * -dim if dim < 0 else dim for dim in port.shape]
        if np.dtype(port.dtype).kind in "iu":
            low, high = (port.low or 0), (0 if port.high is None else port.high)
            found[port.name] = rng.integers(low, high + 1, shape).astype(port.dtype)
        else:
            found[port.name] = rng.standard_normal(shape).astype(port.dtype)
    return found


def check(what: str, found: Mapping[str, Any], session: Any, feeds: Mapping[str, Any]) -> None:
    """Ends the bench where an output is not ONNX Runtime's."""
    for port, wanted in zip(session.get_outputs(), session.run(None, dict(feeds)), strict=True):
        error = np.abs(found[port.name] - wanted).max() / max(np.abs(wanted).max(), 1e-6)
        if not error < TOLERANCE:
            raise SystemExit(f"{what}: output {port.name!r} is off by {error:.2g}")


def _session(path: Path, threads: int) -> Any:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3
    return ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main()

"""Whole models with stitching, without packed kernels, and without stitching, beside ONNX Runtime.

    python -m bench.kernels.stitched_models [--models NAME | FILE.onnx …] [--work DIR] [--trials N] [--json FILE]

Models of the zoo by name, and any ONNX files, such as a Transformer's or a CRNN's. Each is compiled three times in
fp32, where stitching is `packed` (as served), `apart` (a kernel for each pattern) or `off` (TVM's own fusion), and run
on all cores in this process, in turn with ONNX Runtime. `layers` counts what is left of the model, `memory_bound` what
is no product, convolution, attention or look-up. Bars: with stitching never slower than `off` and than `apart`. Run it
on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import veltair
from bench.recsys.embedding_tables import timed
from veltair.compiler.build import compile_model
from veltair.compiler.graph.graph_builder import NodeImporter
from veltair.compiler.kernels.generic.relax_layers import import_layers
from veltair.compiler.stitch.regions import import_region
from veltair.compiler.tuning.kernel_cache import KernelCache
from veltair.machine.environment import describe_environment
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.zoo.registry import ZOO, write

MODELS = ("bert_base", "dien", "bigbird")
WAYS: Mapping[str, NodeImporter] = {
    "packed": import_region,
    "apart": partial(import_region, packing=False),
    "off": import_layers,
}
MEMORY_BOUND = ("stitched", "generic", "layer_norm", "elementwise", "copy", "cast", "concat_rows", "squeeze_excite")
ROUNDS, BUDGET_S = 5, 1.0


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


def compare(path: Path, work: Path, trials: int | None) -> dict[str, Any]:
    """Medians in ms of a model in each way and of ONNX Runtime, on all cores."""
    threads, result = len(usable_machine().cores), dict[str, Any]()
    folders = {way: work / f"{path.stem}-{way}" for way in WAYS}
    for way, importer in WAYS.items():
        if not folders[way].is_dir():
            options: dict[str, Any] = {"precision": "fp32", "trials": trials, "cache": KernelCache()}
            compile_model(path, folders[way], importer=importer, **options)
        layers = [layer.op for layer in load_artifact(folders[way]).manifest.layers]
        result[way] = {"layers": len(layers), "memory_bound": sum(op in MEMORY_BOUND for op in layers)}
    batch = min(load_artifact(folders["packed"]).manifest.max_batch, 64)
    feeds = feeds_of(load_artifact(folders["packed"]), batch)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    with ExitStack() as stack:
        models = {way: stack.enter_context(veltair.load(folder, threads=threads)) for way, folder in folders.items()}
        runs: dict[str, Callable[[], Any]] = {way: partial(model, feeds) for way, model in models.items()}
        runs["onnxruntime"] = partial(session.run, None, feeds)
        for model in models.values():
            for port, wanted in zip(session.get_outputs(), session.run(None, feeds), strict=True):
                error = np.abs(model(feeds)[port.name] - wanted).max() / np.abs(wanted).max()
                if not error < 1e-3:
                    raise SystemExit(f"{path}: output {port.name!r} is off by {error:.2g}")
        turns = [[timed(run, BUDGET_S) for run in runs.values()] for _ in range(ROUNDS)]
    result["ms"] = dict(zip(runs, np.median(turns, 0).tolist(), strict=True))
    return result | {"batch": batch, "threads": threads}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), metavar="NAME | FILE.onnx")
    parser.add_argument("--work", type=Path, default=Path("stitched-models"))
    parser.add_argument("--trials", type=int, help="see veltair compile")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"environment": asdict(describe_environment()), "models": {}}
    for name in options.models:
        path = Path(name)
        if name in ZOO:
            path = options.work / f"{name}.onnx"
            if not path.exists():
                write(name, path)
        result["models"][path.stem] = found = compare(path, options.work, options.trials)
        print(f"{path.stem}:", *(f"{way} {ms:.3f} ms" for way, ms in found["ms"].items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The engines of `bench.recsys.models`, each in a process of its own.

    python -m bench.recsys.model_engines '{"engine": "veltair", "artifact": …, "model": …, "threads": 1, "batch": 1}'

A task's `only` says what is timed if it is not a run on ready inputs: "from the request" decodes, checks and packs a
gRPC request first; "at once" gives a peer a request for each thread.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.at_once import time_at_once
from bench.recsys.from_request import RequestReader
from veltair.commands.timing import engine_process
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.artifact.manifest import Port
from veltair.profiles.artifact.strings import Strings
from veltair.profiles.runtime import pinned_threads

AT_ONCE, FROM_REQUEST = "at once", "from the request"


def main(task: dict[str, Any]) -> None:
    os.environ.update(pinned_threads.kernel_environment())  # before TVM is loaded
    only = task.get("only")
    if only == FROM_REQUEST:
        engine_process.serve_turns(load_from_request(task))
        return
    if "feeds" not in task and only != AT_ONCE:
        engine_process.main(task)
        return
    model, threads = Path(task["model"]), int(task["threads"])
    if "feeds" in task:
        with np.load(task["feeds"]) as values:
            feeds = {name: values[name] for name in values.files}
    else:
        drawn = draw_inputs(load_artifact(Path(task["artifact"])).manifest.inputs, int(task["batch"]))
        feeds = engine_process.peer_feeds(model, drawn, int(task["batch"]))
    if only == AT_ONCE:
        serve_turns_at_once(load_at_once(task["engine"], model, feeds, threads, task["precision"]))
    elif task["engine"] == "onnxruntime":
        engine_process.serve_turns(engine_process.load_onnxruntime(model, feeds, threads))
    else:
        engine_process.serve_turns(engine_process.load_openvino(model, feeds, threads, task["precision"]))


def draw_inputs(ports: Sequence[Port], batch: int) -> dict[str, Any]:
    """Random values of all inputs by name; always the same ones."""
    return {port.name: engine_process.draw_input(port, batch) for port in ports}


def load_from_request(task: dict[str, Any]) -> Callable[[], None]:
    """A run of our engine that begins with the bytes of a gRPC request."""
    artifact, batch, threads = load_artifact(Path(task["artifact"])), int(task["batch"]), int(task["threads"])
    feeds = draw_inputs(artifact.manifest.inputs, batch)
    strings = {name: Strings.from_values(v.ravel()) for name, v in feeds.items() if v.dtype.hasobject}
    reader = RequestReader(artifact.manifest, feeds | strings, batch)
    compute = engine_process.load_veltair(artifact, feeds, batch, threads, reader.arrays)

    def run() -> None:
        reader.read()
        compute()

    return run


def load_at_once(
    engine: str, model: Path, feeds: dict[str, Any], requests: int, precision: str
) -> list[Callable[[], object]]:
    """Runs of a peer that may go on side by side, each on one thread; the engine holds the model once."""
    if engine == "onnxruntime":
        return [engine_process.load_onnxruntime(model, feeds, 1)] * requests  # a session serves several threads
    import openvino as ov

    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": requests, "NUM_STREAMS": requests}
    if precision == "fp32":
        settings["INFERENCE_PRECISION_HINT"] = "f32"
    compiled = ov.Core().compile_model(engine_process.openvino_network(model, feeds), "CPU", settings)
    return [partial(compiled.create_infer_request().infer, feeds) for _ in range(requests)]


def serve_turns_at_once(runs: Sequence[Callable[[], object]]) -> None:
    """Answers each line of stdin with the time a request (see `alternate_runs.run_alternately`)."""
    print("ready", flush=True)
    for _ in sys.stdin:
        print(time_at_once(runs, engine_process.TURN_S), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

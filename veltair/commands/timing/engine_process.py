"""One engine of `veltair bench` in a process of its own, so that engines do not share threads or settings.

    python -m veltair.commands.timing.engine_process \\
        '{"engine": "veltair", "artifact": …, "model": …, "threads": 1, "batch": 1}'

It prints "ready" once the model is loaded, then the median of one turn in ms for each line that it reads.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.api.in_process_model import fastest_versions
from veltair.errors import ModelError
from veltair.loadgen.client import RawFeature
from veltair.loadgen.payloads import RAW_ID_LIMIT, draw_texts
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import Port
from veltair.profiles.artifact.strings import Strings
from veltair.profiles.runtime import pinned_threads

TURN_S = 0.4  # of timed runs in a turn
Feeds = dict[str, NDArray[Any]]  # strings as objects


def draw_input(port: Port, batch: int) -> NDArray[Any]:
    """Random values of one input, of `port.at(batch)`'s shape; always the same ones."""
    random = np.random.default_rng(0)
    shape = port.at(batch)
    if port.dtype == "string":
        return draw_texts(RawFeature(port.max_bytes, port.separator), shape, random)
    if np.issubdtype(np.dtype(port.dtype), np.integer):
        high = port.high or (RAW_ID_LIMIT if port.locations else 0)
        return random.integers(port.low or 0, high + 1, shape).astype(port.dtype)
    return random.standard_normal(shape).astype(port.dtype)


def read_onnx_inputs(model: Path) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Dtype and shape of the inputs of an ONNX file, by name; dynamic dimensions are 0. Raises ModelError."""
    import onnx

    return {
        name: (onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type), tuple(dim.dim_value for dim in kind.shape.dim))
        for name, kind in _onnx_inputs(model).items()
    }


def _onnx_inputs(model: Path) -> dict[str, Any]:
    """The `onnx.TypeProto.Tensor` of each input of an ONNX file. Raises ModelError."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load(str(model), load_external_data=False).graph
    except DecodeError:
        raise ModelError(f"{model}: expected an ONNX file") from None
    constants = {constant.name for constant in graph.initializer}
    return {value.name: value.type.tensor_type for value in graph.input if value.name not in constants}


def peer_feeds(model: Path, feeds: Feeds, batch: int) -> Feeds:
    """Inputs of a peer: the same values, and random ones for inputs that we make from raw features."""
    found = {}
    for name, (dtype, dims) in read_onnx_inputs(model).items():
        shape = tuple(dim or batch for dim in dims)
        if name not in feeds:
            found[name] = np.random.default_rng(0).standard_normal(shape).astype(dtype)
        elif feeds[name].dtype.hasobject:
            found[name] = np.array([text.decode() for text in feeds[name].ravel()]).reshape(shape)
        else:
            found[name] = feeds[name] if feeds[name].ndim == len(shape) else feeds[name].reshape(shape)
    return found


def load_veltair(
    artifact: Artifact, feeds: Feeds, batch: int, threads: int, inputs: Sequence[NDArray[Any]] | None = None
) -> Callable[[], object]:
    """A run of the artifact, each layer in the version that is fastest alone on `threads` cores by its profile.

    inputs: the arrays that kernels read, one for each of `InputLayout.tensors` (default: new ones).
    """
    from veltair.profiles.runtime.executor import Executor, aligned_zeros

    cores = usable_machine().cores
    pool = pinned_threads.PinnedThreads(cores)  # kernels that are loaded after this use it
    executor = Executor(artifact)
    manifest = artifact.manifest
    if inputs is None:
        inputs = [aligned_zeros(port.at(batch), port.dtype) for port in manifest.input_tensors]
    raw = {
        name: Strings.from_values(array.ravel()) if array.dtype.hasobject else array for name, array in feeds.items()
    }
    InputLayout.of(manifest).fill(inputs, raw, batch)
    outputs = [aligned_zeros(port.at(batch), port.dtype) for port in manifest.output_tensors]
    run = executor.bind(batch, inputs, outputs)
    pool.move_to(cores[:threads])
    return run.block(0, fastest_versions(artifact.profiles(), batch, threads))


def load_onnxruntime(model: Path, feeds: Feeds, threads: int) -> Callable[[], object]:
    """A run of the model by ONNX Runtime, which knows the extents of the inputs when it plans."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    for name, extent in named_extents(model, feeds).items():
        options.add_free_dimension_override_by_name(name, extent)
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def load_openvino(model: Path, feeds: Feeds, threads: int, precision: str) -> Callable[[], object]:
    """A run of the model by OpenVINO. precision: "fp32", or "default", which may be bf16."""
    import openvino as ov

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if precision == "fp32":
        settings["INFERENCE_PRECISION_HINT"] = "f32"
    request = ov.Core().compile_model(openvino_network(model, feeds), "CPU", settings).create_infer_request()
    return lambda: request.infer(feeds)


def openvino_network(model: Path, feeds: Feeds) -> Any:
    """The `openvino.Model` of the inputs' shapes: with open ones it takes up to 1.4 times as long."""
    import openvino as ov

    network = ov.Core().read_model(str(model))
    network.reshape({port.any_name: list(feeds[port.any_name].shape) for port in network.inputs})
    return network


def named_extents(model: Path, feeds: Feeds) -> dict[str, int]:
    """The extents of the dimensions that an ONNX file leaves open, by their names."""
    return {
        dim.dim_param: extent
        for name, kind in _onnx_inputs(model).items()
        for dim, extent in zip(kind.shape.dim, feeds[name].shape, strict=True)
        if dim.dim_param
    }


def time_turn(run: Callable[[], object]) -> float:
    """Median ms of one turn. The first quarter, in which threads of other processes may still spin, does not count."""
    end = time.perf_counter() + TURN_S / 4
    while time.perf_counter() < end:
        run()
    taken: list[float] = []
    end = time.perf_counter() + TURN_S
    while time.perf_counter() < end or len(taken) < 5:
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3


def serve_turns(run: Callable[[], object]) -> None:
    """Answer each line of stdin with the time of a turn (see `alternate_runs.run_alternately`)."""
    print("ready", flush=True)
    for _ in sys.stdin:
        print(time_turn(run), flush=True)


def main(task: dict[str, Any]) -> None:
    threads, batch = int(task["threads"]), int(task["batch"])
    artifact, model = load_artifact(Path(task["artifact"])), Path(task["model"])
    feeds = {port.name: draw_input(port, batch) for port in artifact.manifest.inputs}
    if task["engine"] == "veltair":
        run = load_veltair(artifact, feeds, batch, threads)
    elif task["engine"] == "onnxruntime":
        run = load_onnxruntime(model, peer_feeds(model, feeds, batch), threads)
    else:
        run = load_openvino(model, peer_feeds(model, feeds, batch), threads, task["precision"])
    serve_turns(run)


if __name__ == "__main__":
    os.environ.update(pinned_threads.kernel_environment())  # before TVM is loaded
    main(json.loads(sys.argv[1]))

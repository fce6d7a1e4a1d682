"""A model of Triton's Python backend: the arrays of the queries go to ONNX Runtime or OpenVINO, and back.

`bench.serving.triton` copies this file into a model repository, and Triton runs it in a Python of its own, which has no
veltair. The parameters of the configuration name the network, the engine and the threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Feeds = Mapping[str, NDArray[Any]]
Infer = Callable[[Feeds], list[NDArray[Any]]]


def onnxruntime(network: str, threads: int, outputs: Sequence[str]) -> tuple[Infer, set[str]]:
    """What runs the network, and the inputs that it takes: those that nothing reads are dropped."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(network, options, providers=["CPUExecutionProvider"])

    def infer(feeds: Feeds) -> list[NDArray[Any]]:
        return list(session.run(outputs, dict(feeds)))

    return infer, {port.name for port in session.get_inputs()}


def openvino(network: str, threads: int, outputs: Sequence[str]) -> tuple[Infer, set[str]]:
    """The same with OpenVINO in its default precision: bfloat16 where the CPU has it."""
    import openvino as ov

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = ov.Core().compile_model(network, "CPU", settings)
    request = compiled.create_infer_request()
    ports = [compiled.output(name) for name in outputs]

    def infer(feeds: Feeds) -> list[NDArray[Any]]:
        found = request.infer(feeds, share_inputs=True)
        return [found[port].copy() for port in ports]  # the request's own memory, which the next query overwrites

    return infer, {name for port in compiled.inputs for name in port.get_names()}


class TritonPythonModel:
    """What the backend looks for: one instance for each model, whose calls come one after the other."""

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        given = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._outputs = [port["name"] for port in config["output"]]
        load = {"onnxruntime": onnxruntime, "openvino": openvino}[given["engine"]]
        self._infer, taken = load(given["network"], int(given["threads"]), self._outputs)
        self._inputs = [port["name"] for port in config["input"] if port["name"] in taken]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """The answers to queries that the server has batched, from one run of the network."""
        import triton_python_backend_utils as pb

        feeds = [
            {name: pb.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs}
            for request in requests
        ]
        rows = [len(next(iter(each.values()))) for each in feeds]
        whole = feeds[0]
        if len(feeds) > 1:
            whole = {name: np.concatenate([each[name] for each in feeds]) for name in self._inputs}
        found = self._infer(whole)
        answers, first = [], 0
        for count in rows:
            parts = found if len(feeds) == 1 else [array[first : first + count] for array in found]
            tensors = [pb.Tensor(name, part) for name, part in zip(self._outputs, parts, strict=True)]
            answers.append(pb.InferenceResponse(output_tensors=tensors))
            first += count
        return answers

"""A client that asks one query after the other, with NVIDIA's own client library over gRPC or HTTP."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, shared_memory

from veltair.profiles.artifact.manifest import Manifest

CLIENTS: dict[str, ModuleType] = {"grpc": tritonclient.grpc, "http": tritonclient.http}
WARM_UP = 0.1  # of the queries, before those that count
REGION = "way"

Arrays = dict[str, NDArray[Any]]


def draw_inputs(manifest: Manifest) -> Arrays:
    """Random inputs of one row: normal numbers, ids within the model's bounds."""
    random = np.random.default_rng(0)
    found: Arrays = {}
    for port in manifest.inputs:
        if port.high is not None:
            found[port.name] = random.integers(port.low or 0, port.high + 1, port.at(1)).astype(port.dtype)
        else:
            found[port.name] = random.standard_normal(port.at(1)).astype(port.dtype)
    return found


def ask(protocol: str, at: Mapping[str, str], model: str, arrays: Arrays, queries: int, shared: bool) -> dict[str, Any]:
    """Milliseconds of the round trips, and of the model's execution as the server counts it.

    Args:
        protocol: grpc or http.
        at: the server's addresses by protocol; statistics are asked over HTTP.
        model: the served model.
        arrays: its inputs.
        queries: how many count.
        shared: the inputs lie in system shared memory, and a query only names them.
    """
    library = CLIENTS[protocol]
    with library.InferenceServerClient(at[protocol]) as client:
        inputs = [library.InferInput(n, list(a.shape), np_to_triton_dtype(a.dtype)) for n, a in arrays.items()]
        if not shared:
            for tensor, values in zip(inputs, arrays.values(), strict=True):
                tensor.set_data_from_numpy(values)
            return _timed(client, at["http"], model, inputs, queries)
        with _region(client, inputs, arrays):
            return _timed(client, at["http"], model, inputs, queries)


def _timed(client: Any, http: str, model: str, inputs: list[Any], queries: int) -> dict[str, Any]:
    for _ in range(max(1, round(queries * WARM_UP))):
        with suppress(InferenceServerException):
            client.infer(model, inputs)
    count, computed_ns = _computed(http, model)
    taken_ms = []
    for _ in range(queries):
        begin_ns = time.perf_counter_ns()
        with suppress(InferenceServerException):  # refused: the machine was too slow for the target at that moment
            client.infer(model, inputs)
            taken_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
    if not taken_ms:
        raise SystemExit(f"{model}: the server answered none of {queries} queries")
    count_now, computed_now_ns = _computed(http, model)
    p50_ms, p95_ms = np.percentile(taken_ms, [50, 95]).round(4).tolist()
    executed_ms = round((computed_now_ns - computed_ns) / (count_now - count) / 1e6, 4)
    return {
        "answered": len(taken_ms),
        "p50_ms": p50_ms,
        "p95_ms": p95_ms,
        "mean_ms": round(float(np.mean(taken_ms)), 4),
        "executed_ms": executed_ms,
    }


def _computed(http: str, model: str) -> tuple[int, int]:
    """Queries so far, and the time that they were in the model."""
    with urllib.request.urlopen(f"http://{http}/v2/models/{model}/stats") as answer:
        (found,) = json.load(answer)["model_stats"]
    seen = found["inference_stats"]["compute_infer"]
    return int(seen["count"]), int(seen["ns"])


@contextmanager
def _region(client: Any, inputs: list[Any], arrays: Arrays) -> Iterator[None]:
    """Places the arrays in a region of shared memory that the server knows within the `with` block."""
    key, size = f"/veltair-way-{os.getpid()}", sum(values.nbytes for values in arrays.values())
    region = shared_memory.create_shared_memory_region(REGION, key, size)
    try:
        client.register_system_shared_memory(REGION, key, size)
        try:
            offset = 0
            for tensor, values in zip(inputs, arrays.values(), strict=True):
                shared_memory.set_shared_memory_region(region, [values], offset=offset)
                tensor.set_shared_memory(REGION, values.nbytes, offset=offset)
                offset += values.nbytes
            yield
        finally:
            client.unregister_system_shared_memory(REGION)
    finally:
        shared_memory.destroy_shared_memory_region(region)

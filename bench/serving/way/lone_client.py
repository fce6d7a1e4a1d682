"""A client that asks one query after the other, with NVIDIA's own client library over gRPC or HTTP."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families
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
    """Milliseconds of the round trips, and as the server counts them of the model and of the stages of the way.

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
    stages_ms = _stages_ms(http, model)
    taken_ms = []
    for _ in range(queries):
        begin_ns = time.perf_counter_ns()
        with suppress(InferenceServerException):  # refused: the machine was too slow for the target at that moment
            client.infer(model, inputs)
            taken_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
    if not taken_ms:
        raise SystemExit(f"{model}: the server answered none of {queries} queries")
    count_now, computed_now_ns = _computed(http, model)
    answered, stages_now_ms = count_now - count, _stages_ms(http, model)
    p50_ms, p95_ms = np.percentile(taken_ms, [50, 95]).round(4).tolist()
    executed_ms = round((computed_now_ns - computed_ns) / answered / 1e6, 4)
    return {
        "answered": len(taken_ms),
        "p50_ms": p50_ms,
        "p95_ms": p95_ms,
        "mean_ms": round(float(np.mean(taken_ms)), 4),
        "executed_ms": executed_ms,
        "stages_ms": {name: round((now - stages_ms[name]) / answered, 4) for name, now in stages_now_ms.items()},
    }


def _computed(http: str, model: str) -> tuple[int, int]:
    """Queries so far, and the time that they were in the model."""
    with urllib.request.urlopen(f"http://{http}/v2/models/{model}/stats") as answer:
        (found,) = json.load(answer)["model_stats"]
    seen = found["inference_stats"]["compute_infer"]
    return int(seen["count"]), int(seen["ns"])


def _stages_ms(http: str, model: str) -> dict[str, float]:
    """The time so far in each stage of the way; empty for a server that does not tell."""
    try:
        with urllib.request.urlopen(f"http://{http}/metrics") as answer:
            return stage_sums_ms(answer.read().decode(), model)
    except urllib.error.HTTPError:
        return {}


def stage_sums_ms(page: str, tenant: str) -> dict[str, float]:
    """The sums by stage that a page for Prometheus has of one tenant.

    >>> stage_sums_ms('veltair_stage_seconds_total{stage="read",tenant="dlrm"} 0.002', "dlrm")
    {'read': 2.0}
    """
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return {
        sample.labels["stage"]: 1e3 * sample.value
        for sample in samples
        if sample.name == "veltair_stage_seconds_total" and sample.labels["tenant"] == tenant
    }


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

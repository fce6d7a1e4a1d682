"""What the protocol tells about a model: metadata, Triton's configuration, statistics, repository index.

As JSON values; gRPC makes its messages from the same ones, so the two never differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from veltair.profiles.artifact.manifest import Manifest, Port
from veltair.server.front.metrics import TenantMetrics
from veltair.server.protocol.requests import datatype_of
from veltair.types import QoSTarget

VERSION = "1"  # of every model: a daemon serves the artifact that its configuration names
PLATFORM = "veltair"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics")
SHARED_MEMORY = "system_shared_memory"

_TRITON_TYPES = {"BYTES": "TYPE_STRING"}  # the others are TYPE_<datatype>


def metadata(name: str, manifest: Manifest) -> dict[str, Any]:
    return {
        "name": name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [_described(port) for port in manifest.inputs],
        "outputs": [_described(port) for port in manifest.outputs],
    }


def _described(port: Port) -> dict[str, Any]:
    return {"name": port.name, "datatype": datatype_of(port.dtype), "shape": list(port.shape)}


def configuration(name: str, manifest: Manifest, qos: QoSTarget) -> dict[str, Any]:
    """Triton's ModelConfig. Where every tensor has a batch dimension, `dims` leave it out, as Triton does."""
    ports = (*manifest.inputs, *manifest.outputs)
    batched = all(port.shape[:1] == (-1,) for port in ports)
    ranges = {p.name: [p.low, p.high] for p in manifest.inputs if p.low is not None or p.high is not None}
    features = {port.name: _text(port) for port in manifest.inputs if port.locations}
    parameters = {
        "features": msgspec.json.encode(features).decode(),  # the raw ones; of strings, how many bytes and what tokens
        "id_range": msgspec.json.encode(ranges).decode(),  # inclusive, by input
        "max_batch": str(manifest.max_batch),
        "precision": manifest.precision,
        "qos_ms": repr(qos.latency_ns / 1e6),
        "qos_percentile": repr(qos.percentile),
    }
    return {
        "name": name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": manifest.max_batch if batched else 0,
        "input": [_configured(port, batched) for port in manifest.inputs],
        "output": [_configured(port, batched) for port in manifest.outputs],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


def _text(port: Port) -> dict[str, Any]:
    described = {"max_bytes": port.max_bytes, "separator": port.separator}
    return {key: value for key, value in described.items() if value}


def _configured(port: Port, batched: bool) -> dict[str, Any]:
    datatype = datatype_of(port.dtype)
    return {
        "name": port.name,
        "data_type": _TRITON_TYPES.get(datatype, f"TYPE_{datatype}"),
        "dims": list(port.shape[1:] if batched else port.shape),
    }


def statistics(name: str, counts: TenantMetrics) -> dict[str, Any]:
    """Since the daemon's start; durations in ns. Inputs and outputs are placed by the front and cost no step."""
    answered = counts.duration.count
    failed = counts.outcomes.total() - answered

    def spent(count: int, ns: int) -> dict[str, int]:
        return {"count": count, "ns": ns}

    return {
        "name": name,
        "version": VERSION,
        "last_inference": counts.last_ms,
        "inference_count": counts.inferences,
        "execution_count": answered,
        "inference_stats": {
            "success": spent(answered, counts.duration.sum_ns),
            "fail": spent(failed, counts.failed_ns),
            "queue": spent(answered, counts.queue.sum_ns),
            "compute_input": spent(answered, 0),
            "compute_infer": spent(answered, counts.execution.sum_ns),
            "compute_output": spent(answered, 0),
            "cache_hit": spent(0, 0),
            "cache_miss": spent(0, 0),
        },
        "batch_stats": [],
        "memory_usage": [],
        "response_stats": {},
    }


def index(names: Sequence[str], ready: bool) -> list[dict[str, str]]:
    state = (
        {"state": "READY", "reason": ""} if ready else {"state": "UNAVAILABLE", "reason": "starting or shutting down"}
    )
    return [{"name": name, "version": VERSION, **state} for name in names]


def server(version: str, *, shared_memory: bool) -> Mapping[str, Any]:
    return {"name": "veltair", "version": version, "extensions": [*EXTENSIONS, *[SHARED_MEMORY] * shared_memory]}

"""The protocol's descriptions of a model: metadata, Triton's configuration, statistics, repository index.

They are JSON values; gRPC makes its messages from the same ones, so the two never differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from veltair.profiles.artifact.manifest import Manifest, Port
from veltair.profiles.artifact.ragged_inputs import RaggedInput
from veltair.server.front.counts.version_counts import VersionCounts
from veltair.server.ipc.status_records import Executions
from veltair.server.protocol.datatypes import datatype_name
from veltair.server.repository.model_memory import ModelMemory
from veltair.server.repository.served_tenant import ServedTenant
from veltair.types import QoSTarget

PLATFORM = "veltair"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics")
SHARED_MEMORY = "system_shared_memory"

_TRITON_TYPES = {"BYTES": "TYPE_STRING"}  # the others are TYPE_<datatype>


def model_metadata(name: str, versions: Sequence[str], manifest: Manifest) -> dict[str, Any]:
    return {
        "name": name,
        "versions": list(versions),
        "platform": PLATFORM,
        "inputs": [_port_metadata(port, manifest) for port in manifest.client_inputs],
        "outputs": [_port_metadata(port, manifest) for port in manifest.outputs],
    }


def _port_metadata(port: Port, manifest: Manifest) -> dict[str, Any]:
    """The protocol writes -1 for whatever varies."""
    return {"name": port.name, "datatype": datatype_name(port.dtype), "shape": list(manifest.client_shape(port))}


def model_configuration(name: str, versions: Sequence[str], manifest: Manifest, qos: QoSTarget) -> dict[str, Any]:
    """Triton's ModelConfig, where these `versions` are served. Where every tensor has a batch dimension, `dims` omit
    it, as Triton does."""
    ports = (*manifest.client_inputs, *manifest.outputs)
    batched = all(port.shape[:1] == (-1,) for port in ports)
    ranges = {p.name: [p.low, p.high] for p in manifest.client_inputs if p.low is not None or p.high is not None}
    ranges |= _ranges_of_features(manifest)
    features = {port.name: _feature_text(port) for port in manifest.client_inputs if port.locations}
    parameters = {
        "features": msgspec.json.encode(features).decode(),  # raw features; for strings: size and separator
        "labels": msgspec.json.encode({p.name: p.labels for p in manifest.outputs if p.labels}).decode(),  # of texts
        "id_range": msgspec.json.encode(ranges).decode(),  # by input, both ends inclusive
        "max_batch": str(manifest.max_batch),
        "precision": manifest.precision,
        "qos_ms": repr(qos.latency_ns / 1e6),
        "qos_percentile": repr(qos.percentile),
    }
    if (dimension := manifest.dimension) is not None:  # beside the batch: its bounds, both inclusive, and its axes
        facts = {"name": dimension.name, "low": dimension.low, "high": dimension.high}
        facts |= {"axes": dimension.axes, "masks": dimension.masks, "surplus": dimension.surplus}
        parameters["dimension"] = msgspec.json.encode(facts).decode()
    if manifest.ragged:
        parameters["bags"] = msgspec.json.encode([_bag_facts(each) for each in manifest.ragged]).decode()
    return {
        "name": name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"specific": {"versions": [int(version) for version in versions]}},
        "max_batch_size": manifest.max_batch if batched else 0,
        "input": [_port_configuration(port, manifest, batched) for port in manifest.client_inputs],
        "output": [_port_configuration(port, manifest, batched) for port in manifest.outputs],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


def _ranges_of_features(manifest: Manifest) -> dict[str, list[int | None]]:
    """Ranges of ids by input: where several features share one, the range that all of them have in common."""
    ports, found = {port.name: port for port in manifest.inputs}, dict[str, list[int | None]]()
    for each in manifest.ragged:
        if each.features > 1:
            own = [ports[view.ids] for view in each.views]
            lows = [port.low for port in own if port.low is not None]
            highs = [port.high for port in own if port.high is not None]
            found[each.ids] = [max(lows, default=None), min(highs, default=None)]
    return found


def _bag_facts(bags: RaggedInput) -> dict[str, Any]:
    """The inputs that hold bags, which differ in length, and the most ids that one may have."""
    return {
        "ids": bags.ids,
        "bounds": bags.bounds,
        "form": bags.form,
        "room": bags.room,
        "weights": bags.weights,
        "features": bags.features,
    }


def _feature_text(port: Port) -> dict[str, Any]:
    entries = {"max_bytes": port.max_bytes, "separator": port.separator}
    return {key: value for key, value in entries.items() if value}


def _port_configuration(port: Port, manifest: Manifest, batched: bool) -> dict[str, Any]:
    datatype = datatype_name(port.dtype)
    return {
        "name": port.name,
        "data_type": _TRITON_TYPES.get(datatype, f"TYPE_{datatype}"),
        "dims": list(manifest.client_shape(port))[1 if batched else 0 :],
    }


def model_statistics(
    name: str,
    version: str,
    counts: VersionCounts,
    told: Mapping[int, Executions] = MappingProxyType({}),
    memory: ModelMemory | None = None,
) -> dict[str, Any]:
    """One version since the daemon started; durations in ns. Copying inputs and outputs is not timed.

    `counts` are of requests, `told` of executions by their number of samples, as engines have told; `memory`: of this
    version now.
    """
    executions = dict(sorted(told.items()))
    answered = counts.answered

    def duration(count: int, ns: int) -> dict[str, int]:
        return {"count": count, "ns": ns}

    return {
        "name": name,
        "version": version,
        "last_inference": counts.last_ms,
        "inference_count": sum(samples * each.count for samples, each in executions.items()),
        "execution_count": sum(each.count for each in executions.values()),
        "inference_stats": {
            "success": duration(answered, counts.duration_ns),
            "fail": duration(counts.failed, counts.failed_ns),
            "queue": duration(answered, counts.queue_ns),
            "compute_input": duration(answered, 0),
            "compute_infer": duration(answered, counts.execute_ns),
            "compute_output": duration(answered, 0),
            "cache_hit": duration(0, 0),
            "cache_miss": duration(0, 0),
        },
        "batch_stats": [
            {
                "batch_size": samples,
                "compute_input": duration(each.count, 0),
                "compute_infer": duration(each.count, each.execute_ns),
                "compute_output": duration(each.count, 0),
            }
            for samples, each in executions.items()
        ],
        "memory_usage": [] if memory is None else [{"type": "CPU", "id": 0, "byte_size": memory.total}],
        "response_stats": {},
    }


def repository_index(served: Sequence[ServedTenant], ready: bool) -> list[dict[str, str]]:
    state, reason = ("READY", "") if ready else ("UNAVAILABLE", "starting or shutting down")
    return [{"name": each.name, "version": each.version, "state": state, "reason": reason} for each in served]


def server_metadata(version: str, *, shared_memory: bool) -> Mapping[str, Any]:
    extensions = [*EXTENSIONS, SHARED_MEMORY] if shared_memory else list(EXTENSIONS)
    return {"name": "veltair", "version": version, "extensions": extensions}

"""What a page about one model shows: tensors, memory, layers with their code versions, how true the profile is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from veltair.profiles.artifact.manifest import LayerEntry, Manifest, Port
from veltair.server.ipc.status_records import TenantStatus
from veltair.server.ipc.tensor_pool import lay_out_region
from veltair.server.protocol.datatypes import datatype_name
from veltair.server.repository.model_memory import KINDS, ModelMemory
from veltair.server.repository.served_tenant import ServedTenant


def model_details(
    served: ServedTenant,
    versions: Sequence[str],
    status: TenantStatus | None,
    *,
    cores: int,
    workers: int | None,
    held: ModelMemory | None,
) -> dict[str, Any]:
    """`versions`: all that are served of the model. `status`: of its tenant, None while the engine does not answer.
    `cores`: those that blocks may have; `workers`: processes that hold the model; `held`: what it takes in memory.
    """
    manifest, target = served.manifest, served.qos
    return {
        "name": served.name,
        "model": manifest.model,
        "version": served.version,
        "versions": list(versions),
        "digest": served.artifact.digest,
        "precision": manifest.precision,
        "target_ms": target.latency_ns / 1e6,
        "percentile": target.percentile,
        "priority": served.priority,
        "batching": served.batching,
        "share": {
            "weight": served.share.weight,
            "slots": served.share.slots,
            "rate": served.share.rate or None,
        },
        "max_batch": manifest.max_batch,
        "batches": list(manifest.batches),
        "levels": list(manifest.levels),
        "environment": manifest.environment,
        "inputs": [_port(port, manifest) for port in manifest.client_inputs],
        "outputs": [_port(port, manifest) for port in manifest.outputs],
        "memory": _memory(served, workers, held),
        "layers": [_layer(manifest, layer, cores) for layer in manifest.layers],
        "use": None if status is None else _use(status),
    }


def _port(port: Port, manifest: Manifest) -> dict[str, Any]:
    bounds = None if port.low is None and port.high is None else [port.low, port.high]
    shape = list(manifest.client_shape(port))
    return {"name": port.name, "datatype": datatype_name(port.dtype), "shape": shape, "bounds": bounds}


def _memory(served: ServedTenant, workers: int | None, held: ModelMemory | None) -> dict[str, Any]:
    """The model's memory in bytes."""
    manifest = served.manifest
    return {
        "weights": sum(buffer.bytes_at(1) for buffer in manifest.buffers if buffer.kind == "weight"),
        "held": None if held is None else {kind: getattr(held, kind) for kind in KINDS} | {"total": held.total},
        "resident": served.resident,
        "activations": sum(each.arena_bytes for each in manifest.every_bucket),  # in each worker
        "workers": workers,
        "query": lay_out_region(manifest, 0).slot_bytes,  # inputs and outputs at the largest batch
        "slots": served.share.slots,
    }


def _layer(manifest: Manifest, layer: LayerEntry, cores: int) -> dict[str, Any]:
    shapes = [list(manifest.buffers[index].shape) for index in layer.outputs]
    return {
        "name": layer.name,
        "op": layer.op,
        "shape": shapes[0] if shapes else [],
        "flops": layer.flops[0],
        "bytes": layer.bytes[0],
        "versions": [
            {
                "parallelism": version.parallelism,
                "block_bytes": version.block_size,
                "alone_us": [ns / 1e3 for ns in version.latency_ns[0][0][:cores]],
                "origin": version.origin,
                "point": version.point,
            }
            for version in layer.versions
        ],
    }


def _use(status: TenantStatus) -> dict[str, Any]:
    """The model's use since the engine started."""
    return {
        "done": status.done,
        "versions": {str(version): layers for version, layers in sorted(status.versions.items())},
        "predicted_ms": status.predicted_ns / 1e6,
        "measured_ms": status.measured_ns / 1e6,
        "drift": status.measured_ns / status.predicted_ns if status.predicted_ns else None,
        "batches": {str(queries): count for queries, count in sorted(status.batches.items())},
    }

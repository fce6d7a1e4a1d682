"""A model artifact from an ONNX file: lower, search or records, versions, and what is written."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.progress import Progress

from veltair.compiler.assemble import assemble
from veltair.compiler.embedding.table_storage import TOLERANCE as TABLE_TOLERANCE
from veltair.compiler.embedding.table_storage import TableStorage
from veltair.compiler.features.description_file import load_description as load_features
from veltair.compiler.features.feature_model import join_features
from veltair.compiler.kernels.spaces import SPACES
from veltair.compiler.onnx.onnx_model import load as load_onnx
from veltair.compiler.pipeline import lower
from veltair.compiler.timing.measure import Bounds, Meter
from veltair.compiler.timing.modelled_interference import this_memory
from veltair.compiler.tuning.code_versions import choose_versions
from veltair.compiler.tuning.precision import Precision, dots_pay, pick_precision
from veltair.compiler.tuning.search import Setting, search
from veltair.machine.environment import describe_environment
from veltair.machine.isa import ISAS, cpu_features, isa_features, tvm_target
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import (
    KERNELS,
    MANIFEST,
    Artifact,
    file_digest,
    load_artifact,
    write_artifact,
)
from veltair.profiles.artifact.manifest import SCHEMA, LevelSource, Manifest, Storage
from veltair.profiles.records.tuning_records import RecordStore
from veltair.types import Environment

# Of the whole model: error over the output's largest value. Layers are held to much less (see `check`), but their
# roundings add up with depth: 3.5 % measured on ResNet-50 and MobileNet-V2 with random weights.
TOLERANCE = {"fp32": 1e-3, "bf16": 0.1}
MAX_SIZES = 5  # batch sizes that are timed
QOS_FACTOR = 3  # the default target: so many times what the model takes alone, rounded up to a millisecond


def compile_model(
    onnx: Path,
    out: Path,
    *,
    name: str | None = None,
    qos_ns: int | None = None,
    trials: int | None = None,
    precision: Precision = "auto",
    isa: str | None = None,
    fresh: bool = False,
    max_batch: int | None = None,
    features: Path | None = None,
    levels: LevelSource = "measured",
    tables: Storage = "fp32",
    progress: Progress | None = None,
    store: RecordStore | None = None,
) -> Artifact:
    """Compile an ONNX file into an artifact at `out`, which appears whole or not at all.

    Args:
        name: of the model; the file's stem by default.
        qos_ns: latency target; by default what the file asks for in its metadata (`veltair.qos_ms`), else three
            times what the model takes alone.
        trials: candidates measured of each workload without shipped records of this CPU; see `search`.
        precision: see `pick_precision`.
        features: a description of what some inputs of the model are made from (docs/features.md).
        fresh: searches every layer from nothing, whatever has been recorded.
        isa: one of `machine.isa.ISAS`, of which nothing beyond is used; the richest of this CPU by default.
        levels: "modelled" takes interference levels from a model where co-runners cost nothing measurable.
        tables: how rows of float tables that are looked up are kept (`embedding.rows`). Those that the file keeps in
            float16 or in bytes with a scale stay as they are.
        store: tuning records; the shipped ones and the user's by default.

    Raises UserError (ModelError, ConfigError, …) for what is wrong with the input, VeltairError when a layer has no
    version that works.
    """
    offered = isa_features(isa, cpu_features())
    chosen = pick_precision(precision, offered, isa, dots_pay)
    used = offered if chosen == "bf16" else offered & ISAS["avx512"]  # what fp32 code has a use for
    progress = progress or Progress(disable=True)
    with write_artifact(out) as draft, tempfile.TemporaryDirectory(prefix="veltair-compile-") as scratch:
        model = load_onnx(onnx, max_batch)
        kept = TableStorage(tables, Path(scratch))
        front = join_features(model, load_features(features) if features else None, kept)
        graph = lower(model, chosen, front, kept)
        batches = batch_sizes(graph.max_batch)
        known = {p.name: (p.low, p.high) for p in graph.inputs if p.low is not None and p.high is not None}
        known |= front.bounds if front else {}
        bounds: Bounds = known | {view: known[base] for view, base in graph.views.items() if base in known}
        target, environment = tvm_target(used), describe_environment()
        setting = Setting(target, used, environment.cpu, chosen, batches[len(batches) // 2], bounds, SPACES)
        cores = usable_machine().cores
        with Meter(cores) as meter:
            found = search(graph.layers, store or RecordStore(used, fresh=fresh), meter, setting, trials, progress)
            alone_ns = sum(min(c.best_ns for c in found[layer.workload]) for layer in graph.layers)
            qos = qos_ns or _asked_qos_ns(model.metadata) or -(-QOS_FACTOR * alone_ns // 1_000_000) * 1_000_000
            memory = this_memory(cores) if levels == "modelled" else None
            timed, versions = choose_versions(
                graph.layers, found, qos, batches, meter, setting, Path(scratch), progress, memory
            )
        parts = assemble(graph, versions, batches, setting, draft, progress)
        manifest = Manifest(
            schema=SCHEMA,
            model=name or onnx.stem,
            precision=chosen,
            tolerance=TOLERANCE[chosen] + TABLE_TOLERANCE[tables],
            qos_ns=qos,
            target={k: v if isinstance(v, int | str) else ",".join(v) for k, v in target.items()},
            features=tuple(sorted(used)),
            max_batch=graph.max_batch,
            batches=batches,
            levels=timed.levels,
            level_sources=timed.sources,
            inputs=graph.inputs,
            packed_buffers=graph.packed_buffers,
            outputs=graph.outputs,
            buffers=parts.buffers,
            arena_bytes=parts.arena_bytes,
            layers=parts.layers,
            environment=_flat(environment),
            source_digest=file_digest(onnx),
            kernels_digest=file_digest(draft / KERNELS),
            weights_digest=parts.weights_digest,
            tables=tables,
            tables_error=kept.error,
        )
        (draft / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        checked = load_artifact(draft)  # what a reader would refuse is not published
    return replace(checked, path=out)


def batch_sizes(max_batch: int, limit: int = MAX_SIZES) -> tuple[int, ...]:
    """1 … max_batch by powers of two, at most `limit` of them evenly spread, both ends in."""
    powers = [1]
    while powers[-1] * 2 < max_batch:
        powers.append(powers[-1] * 2)
    sizes = [*powers, max_batch] if max_batch > 1 else powers
    if len(sizes) <= limit:
        return tuple(sizes)
    return tuple(sizes[i] for i in np.linspace(0, len(sizes) - 1, limit).round().astype(int))


def _asked_qos_ns(metadata: Mapping[str, str]) -> int:
    """What the file states as `veltair.qos_ms`; 0 where it states nothing usable."""
    try:
        asked_ms = float(metadata.get("veltair.qos_ms", "0"))
    except ValueError:
        return 0
    return round(asked_ms * 1e6) if 0 < asked_ms < 1e9 else 0


def _flat(environment: Environment) -> dict[str, str]:
    """As the manifest holds it: text by name."""
    facts: dict[str, Any] = asdict(environment)
    versions: dict[str, str] = facts.pop("versions")
    flat = {k: " ".join(map(str, v)) if isinstance(v, tuple | list) else str(v) for k, v in facts.items()}
    return flat | versions

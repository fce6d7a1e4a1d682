"""Writes the kernels and weights of an artifact, and lists every tensor that its kernels take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress

from veltair.compiler.arena import plan_arena
from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.locality.kernel_reuse import compulsory_bytes
from veltair.compiler.shared_library import link_library
from veltair.compiler.tuning.checked_versions import TunedVersion
from veltair.compiler.tuning.setting import Setting
from veltair.compiler.weight_file import WeightFile
from veltair.profiles.artifact.artifact_folder import KERNELS, WEIGHTS
from veltair.profiles.artifact.manifest import Buffer, LayerEntry, VersionEntry


@dataclass(frozen=True, slots=True)
class ArtifactParts:
    """The contents of the two files beside the manifest, as the manifest describes them.

    >>> ArtifactParts(layers=(), buffers=(), arena_bytes=8192, weights_digest="00c0ffee").arena_bytes
    8192
    """

    layers: tuple[LayerEntry, ...]
    buffers: tuple[Buffer, ...]
    arena_bytes: int
    weights_digest: str


@dataclass(slots=True)
class _BufferIndex:
    """Numbers the distinct tensors that kernels take."""

    index: dict[Buffer, int] = field(default_factory=dict)

    def add(self, buffer: Buffer) -> int:
        return self.index.setdefault(buffer, len(self.index))


def assemble(
    graph: LayerGraph,
    versions: Mapping[str, Sequence[TunedVersion]],
    batches: Sequence[int],
    setting: Setting,
    folder: Path,
    progress: Progress,
) -> ArtifactParts:
    """Write `weights.bin` and `kernels.so` into the folder. Only one layer's packed weights are held at a time."""
    arena = plan_arena(graph)
    buffers = _BufferIndex()
    entries = []
    task = progress.add_task("pack weights", total=len(graph.layers))
    with WeightFile(folder / WEIGHTS) as file:

        def place(tensor: Activation) -> int:
            where = arena.allocations[tensor.name]
            return buffers.add(Buffer(where.kind, tensor.dtype, tensor.physical, where.offset))

        for spec in graph.layers:
            inputs, outputs = tuple(map(place, spec.inputs)), tuple(map(place, spec.outputs))
            packed = []
            for version in versions[spec.symbol]:
                kernel = setting.spaces[spec.op].build(spec, version.point, setting.features)
                weights = (Buffer("weight", str(w.dtype), w.shape, file.add(w)) for w in kernel.weights)
                arguments = (*inputs, *map(buffers.add, weights), *outputs)
                packed.append(
                    VersionEntry(
                        symbol=version.symbol,
                        arguments=arguments,
                        block_size=version.block_size,
                        parallelism=version.parallelism,
                        point=version.point,
                        latency_ns=version.latency_ns,
                        origin=version.origin,
                    )
                )
            entries.append(
                LayerEntry(
                    name=spec.name,
                    op=spec.op,
                    inputs=inputs,
                    outputs=outputs,
                    flops=tuple(spec.flops * batch for batch in batches),
                    bytes=tuple(compulsory_bytes(spec, batch) for batch in batches),
                    versions=tuple(packed),
                    note=spec.parameters.note,
                )
            )
            progress.advance(task)
        digest = file.digest
    link_library(dict.fromkeys(v.object_file for group in versions.values() for v in group), folder / KERNELS)
    return ArtifactParts(tuple(entries), tuple(buffers.index), arena.bytes, digest)

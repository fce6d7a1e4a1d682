"""Measured profiles for the simulator: the layers of an artifact as work on a machine model.

Times alone come from the artifact. The traffic of a layer is its compulsory traffic, because the artifact does not know
more: all of it passes the L2; below the L3 the weights come from memory at each query, the rest where it is not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from veltair.errors import ConfigError
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.profiles.artifact.manifest import ITEM_BYTES, LayerEntry, Port
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.simulation.machine_model.roofline import ModelWork, Table, dram_bytes, link_gb_s
from veltair.types import ModelProfile


def load_measured_models(path: Path, machine: MachineModel, cores: int) -> list[tuple[ModelProfile, ModelWork]]:
    """Returns the profile for the scheduler and the work for the machine, for each timed batch size, ascending.

    Raises ArtifactError, and ConfigError where the artifact was timed on fewer cores.
    """
    artifact = load_artifact(path)
    known = artifact.profiles()
    if known[0].cores < cores:
        raise ConfigError(f"{path}: was timed on {known[0].cores} cores, and {cores} of {machine.name} are in use")
    return [(profile, _work(artifact, i, profile, machine, cores)) for i, profile in enumerate(known)]


def _work(artifact: Artifact, batch: int, profile: ModelProfile, machine: MachineModel, cores: int) -> ModelWork:
    entries = artifact.manifest.layers
    shape = cores, len(entries), max(len(entry.versions) for entry in entries)
    compute_ns = np.full(shape, np.inf)
    launch_ns = machine.launch_ns + machine.launch_core_ns * np.arange(cores)
    for layer, of_layer in enumerate(profile.versions):
        for at, version in enumerate(of_layer):
            alone = np.array(version.latency.latency_ns[0][:cores], float)
            compute_ns[:, layer, at] = np.maximum(alone - launch_ns, 0.0)  # the roofline adds the launch

    def everywhere(values: list[float]) -> Table:
        return np.full(shape, np.array(values)[:, None])

    # Alone a layer takes the measured time, so it cannot have moved more than the links let through in that time.
    on = np.arange(1.0, cores + 1)[:, None, None]
    link = link_gb_s(on, -(-on // machine.domain_cores), 1.0, machine)
    finite = np.where(np.isinf(compute_ns), 0.0, compute_ns)
    through = finite * np.minimum(link, machine.dram_gb_s)
    moved = everywhere([float(entry.bytes[batch]) for entry in entries])
    below = np.minimum(moved, through)
    cold = everywhere([float(min(_weight_bytes(artifact, entry), entry.bytes[batch])) for entry in entries])
    work = ModelWork(
        model=profile.model,
        compute_ns=compute_ns,
        l3_bytes=np.minimum(moved, finite * on * machine.l3_gb_s),
        remote_bytes=np.zeros(shape),
        need_bytes=np.stack([np.zeros(shape), moved], 1),
        dram_bytes=np.stack([below, np.minimum(cold, below)], 1),
        flops=np.array([float(entry.flops[batch]) for entry in entries]),
        in_bytes=_sent_bytes(artifact.manifest.inputs, profile.batch),
        out_bytes=_sent_bytes(artifact.manifest.outputs, profile.batch),
    )
    return _without_exposed(work, machine) if machine.exposed_share else work


def _without_exposed(work: ModelWork, machine: MachineModel) -> ModelWork:
    """Takes from computing what the roofline adds for moving, so that layers alone take what was measured."""
    share, computing = machine.exposed_share, work.compute_ns.copy()
    for row in range(work.cores):
        domains = machine.domains(row + 1)
        kept = np.minimum(work.need_bytes[row, -1], domains * machine.l3_bytes)
        moved = dram_bytes(work, row + 1, kept)
        moving = moved / np.minimum(link_gb_s(row + 1, domains, 1.0, machine), machine.dram_gb_s)
        alone = work.compute_ns[row]
        longer = alone >= moving * (1 + share)  # computing stays the longer of the two
        computing[row] = np.where(longer, alone - share * moving, (alone - moving) / share)
    through_ns = work.l3_bytes / (np.arange(1.0, work.cores + 1)[:, None, None] * machine.l3_gb_s)
    l3_bytes = work.l3_bytes * np.minimum(computing / np.maximum(through_ns, 1e-9), 1.0)
    return replace(work, compute_ns=computing, l3_bytes=l3_bytes)


def _sent_bytes(ports: Sequence[Port], batch: int) -> float:
    """Bytes of the inputs or outputs of a query; a text counts with its greatest size."""
    return float(sum(prod(port.at(batch)) * ITEM_BYTES.get(port.dtype, port.max_bytes) for port in ports))


def _weight_bytes(artifact: Artifact, entry: LayerEntry) -> int:
    """Bytes of the weights in the first version; other versions pack the same constants in another way."""
    buffers = [artifact.manifest.buffers[index] for index in set(entry.versions[0].arguments)]
    return sum(prod(b.shape) * ITEM_BYTES[b.dtype] for b in buffers if b.kind == "weight")

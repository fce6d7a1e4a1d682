"""The cores that the daemon uses and how many workers it starts, where the configuration leaves them open."""

from __future__ import annotations

from collections.abc import Sequence

from veltair.errors import ConfigError
from veltair.machine.memory import memory_bytes
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import CheckedArtifact
from veltair.server.ipc.worker_cell import MAX_CORES, cell_bytes
from veltair.types import Machine

FEW_CORES = 4
LAYERS, BATCH = 4096, 4096  # of a model that is loaded later
WORKER_BYTES = 160 << 20  # interpreter, numpy, TVM runtime and code of the kernels; models come on top


def limit_machine(cores: int | None) -> Machine:
    """The first `cores` of those that this process may use, whole L3 domains first; all by default.

    Raises ConfigError for more cores than there are, or a core number that the worker's cell cannot hold.
    """
    whole = usable_machine()
    wanted = len(whole.cores) if cores is None else cores
    if wanted > len(whole.cores):
        raise ConfigError(f"server.cores: {wanted} asked for, {len(whole.cores)} usable (affinity mask and quota)")
    domains = []
    for domain in whole.domains:
        domains.append(domain[:wanted])
        wanted -= len(domains[-1])
    limited = Machine(tuple(domain for domain in domains if domain))
    if max(limited.cores) >= MAX_CORES:
        raise ConfigError(f"core {max(limited.cores)} is usable, but only cores below {MAX_CORES} are supported")
    return limited


def home_core(machine: Machine) -> int | None:
    """The core that the I/O thread and the engine stay on, where small queries run first; None for no such core.

    To wake a thread on the same core takes 2 to 5 us; on another one, which a hypervisor has halted, 20 to 50 us. On a
    machine of more cores than a few a core that nobody else uses is worth more than a short way.
    """
    return machine.cores[0] if len(machine.cores) <= FEW_CORES else None


def default_workers(cores: int, artifacts: Sequence[CheckedArtifact]) -> int:
    """Twice the cores, within half the memory: each worker has an arena for every model. Weights are shared."""
    private = {artifact.digest: artifact.manifest.private_bytes(2 * cores) for artifact in artifacts}
    fitting = memory_bytes() // 2 // (WORKER_BYTES + sum(private.values()))
    return max(2, min(2 * cores, fitting))


def largest_cell(artifacts: Sequence[CheckedArtifact]) -> int:
    """The size of a cell that takes any block of any of these models, and of most that may be loaded later."""
    manifests = [bucket.manifest for artifact in artifacts for bucket in artifact.buckets()]
    layers = max([LAYERS, *(len(each.layers) for each in manifests)])
    return cell_bytes(layers, max([BATCH, *(each.max_batch for each in manifests)]))

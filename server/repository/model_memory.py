"""What the models cost in memory: `ModelMemory`, from the sizes of what the processes hold for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from veltair.server.repository.artifact_sizes import buffer_bytes, sealed_bytes
from veltair.server.repository.served_tenant import ServedTenant

KINDS = ("weights", "code", "workers", "slots")


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes that a version of a tenant's model costs, in all processes together. A part has the name of its kind.

    Tenants with the same artifact share all but their slots and buffers; each has an equal part of it here, so that the
    sum over all tenants is what there is.

    >>> ModelMemory("resnet50", "1", resident=True, weights=100, code=20, workers=30).total
    150
    """

    tenant: str
    version: str
    resident: bool  # false: it left memory, and a query brings it back
    weights: int = 0  # sealed, once for all processes
    code: int = 0  # likewise: the library and the manifest
    workers: int = 0  # their arenas and buffers for batches, in full: pages that were never used cost nothing yet
    slots: int = 0  # of the tensor pool, as far as they have been used

    @property
    def total(self) -> int:
        return self.weights + self.code + self.workers + self.slots


@dataclass(frozen=True, slots=True)
class MemoryMoves:
    """How often models of each tenant have left memory and come back, since the daemon started.

    >>> MemoryMoves(returns={"resnet50": 2}).waiting
    0
    """

    returns: Mapping[str, int] = field(default_factory=dict)
    evictions: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0  # queries that wait for a model now


def memory_of_models(
    live: Iterable[ServedTenant], workers: int, slot_bytes: Callable[[ServedTenant], int]
) -> tuple[ModelMemory, ...]:
    """What each model costs. `workers`: processes that hold all models; `slot_bytes`: what a model's slots take now."""
    models = list(live)
    sharing = Counter(served.artifact.digest for served in models if served.resident)
    found = []
    for served in models:
        if not served.resident:
            found.append(ModelMemory(served.name, served.version, resident=False))
            continue
        manifest, users = served.manifest, sharing[served.artifact.digest]
        sealed = sealed_bytes(served.artifact.files)
        buffers = buffer_bytes(manifest, batching=served.batching)
        found.append(
            ModelMemory(
                served.name,
                served.version,
                resident=True,
                weights=sealed.weights // users,
                code=sealed.code // users,
                workers=workers * (manifest.private_bytes(workers) // users + buffers),
                slots=slot_bytes(served),
            )
        )
    return tuple(found)

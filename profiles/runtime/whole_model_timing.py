"""What layers take within their model, which is more than what the compiler saw of each.

The compiler times every version of a layer over and over, with all that it touches in the caches. In the model a
layer's weights lie where the layers in between have left them, and a query comes after a pause. So the whole model
takes longer than the sum of its layers; here it is timed, and each layer's times grow in proportion, by batch and core
count. Done again it changes nothing but for the noise, of which little is left: what a neighbour of the machine takes
for a second falls into one of several turns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from numpy.typing import NDArray

from veltair.errors import ConfigError
from veltair.profiles.artifact.manifest import KERNELS, MANIFEST, WEIGHTS, Artifact, Manifest, Port, load, writing
from veltair.types import CoreSet

if TYPE_CHECKING:
    from veltair.profiles.runtime.executor import Executor
    from veltair.profiles.runtime.pinned_threads import CorePool

Whole: TypeAlias = tuple[tuple[int, ...], ...]  # ns by (batches, cores)

PAUSE_S = 0.005  # between two queries: long enough for threads and cores to fall asleep
TURNS = 5
RUNS, LEAST_RUNS = 12, 3  # in a turn
TURN_S = 0.4  # for a batch on so many cores, unless the least number of runs takes longer
IN_MODEL = "within the model"


def adjust(artifact: Artifact) -> Artifact:
    """Times the model on this machine, and writes what was found into the artifact.

    TVM's runtime is loaded, so `core_pool.environment()` is to be set before. Raises ConfigError where the artifact was
    timed on more cores than there are here, and for one that takes raw features.
    """
    manifest = scaled(artifact.manifest, whole_ns(artifact))
    with writing(artifact.path) as draft:
        for name in (KERNELS, WEIGHTS):
            os.link(artifact.path / name, draft / name)
        (draft / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return load(artifact.path)


def whole_ns(artifact: Artifact) -> Whole:
    """Of whole queries, each layer in the version that is fastest alone: the least of several turns' medians."""
    from veltair.machine.topology import usable_machine
    from veltair.profiles.runtime.executor import Executor
    from veltair.profiles.runtime.pinned_threads import CorePool

    manifest = artifact.manifest
    timed = len(manifest.layers[0].versions[0].latency_ns[0][0])
    cores = usable_machine().cores[:timed]
    if len(cores) < timed:
        raise ConfigError(f"{artifact.path}: was timed on {timed} cores, this machine offers {len(cores)}")
    if manifest.banks:
        raise ConfigError(f"{artifact.path}: takes raw features, whose times depend on them")
    before = os.sched_getaffinity(0)
    try:
        pool = CorePool(cores)  # kernels that are loaded from here on use it
        executor = Executor(artifact)
        turns = [_turn(executor, pool, cores) for _ in range(TURNS)]
    finally:
        os.sched_setaffinity(0, before)  # the pool has moved this thread
    return tuple(tuple(map(min, zip(*rows, strict=True))) for rows in zip(*turns, strict=True))


def _turn(executor: Executor, pool: CorePool, cores: CoreSet) -> Whole:
    manifest = executor.manifest
    found = []
    for at, batch in enumerate(manifest.batches):
        inputs = [_room(port, batch) for port in manifest.rooms]
        run = executor.bind(batch, inputs, [_room(port, batch) for port in manifest.outputs])
        row = []
        for count in range(1, len(cores) + 1):
            pool.point(cores[:count])
            row.append(_median_ns(run.block(0, _fastest(manifest, at, count))))
        found.append(tuple(row))
    return tuple(found)


def _room(port: Port, batch: int) -> NDArray[Any]:
    """Ones, or the lowest id."""
    from veltair.profiles.runtime.executor import empty

    array = empty(port.at(batch), port.dtype)
    array.fill(1 if port.low is None else port.low)
    return array


def scaled(manifest: Manifest, whole: Whole) -> Manifest:
    """With the layers' times such that their sum, each in its version that is fastest alone, is `whole`."""
    by_batch = factors(manifest, whole)

    def longer(latency: tuple[tuple[tuple[int, ...], ...], ...]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(
            tuple(tuple(max(1, round(t * f)) for t, f in zip(times, by_core, strict=True)) for times in levels)
            for levels, by_core in zip(latency, by_batch, strict=True)
        )

    layers = tuple(
        msgspec.structs.replace(
            layer,
            versions=tuple(msgspec.structs.replace(v, latency_ns=longer(v.latency_ns)) for v in layer.versions),
        )
        for layer in manifest.layers
    )
    return msgspec.structs.replace(manifest, layers=layers, environment=manifest.environment | {"times": IN_MODEL})


def factors(manifest: Manifest, whole: Whole) -> list[list[float]]:
    """How many times as long as its layers' sum `whole` is, by batch and core count."""
    return [
        [took / layers for took, layers in zip(row, sums, strict=True)]
        for row, sums in zip(whole, sums_ns(manifest), strict=True)
    ]


def sums_ns(manifest: Manifest) -> Whole:
    """Of the layers' times, each in its version that is fastest alone."""
    counts = range(len(manifest.layers[0].versions[0].latency_ns[0][0]))
    return tuple(
        tuple(sum(min(v.latency_ns[at][0][i] for v in layer.versions) for layer in manifest.layers) for i in counts)
        for at in range(len(manifest.batches))
    )


def _fastest(manifest: Manifest, at: int, cores: int) -> list[int]:
    """The version of each layer that is fastest alone."""
    return [
        min(range(len(layer.versions)), key=lambda i: layer.versions[i].latency_ns[at][0][cores - 1])
        for layer in manifest.layers
    ]


def _median_ns(query: Callable[[], object]) -> int:
    for _ in range(2):
        query()
    times: list[int] = []
    end = time.perf_counter() + TURN_S
    while len(times) < LEAST_RUNS or (len(times) < RUNS and time.perf_counter() < end):
        time.sleep(PAUSE_S)
        begin_ns = time.perf_counter_ns()
        query()
        times.append(time.perf_counter_ns() - begin_ns)
    return round(median(times))

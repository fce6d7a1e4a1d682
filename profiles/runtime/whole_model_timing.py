"""Whole-model timing: layers take longer within their model than the compiler measured of each by itself.

The compiler times every version of a layer over and over, with all that it touches in the caches. In the model, the
weights of a layer lie where the layers in between have left them, and a query comes after a pause. So the whole model
takes longer than the sum of its layers. This module times it, and lengthens the times of each layer in proportion, by
batch and core count. A second timing changes nothing except for noise. Little of that is left, because a disturbance of
a second by another guest of the machine falls into only one of several turns.
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
from veltair.profiles.artifact.artifact_folder import (
    KERNELS,
    MANIFEST,
    WEIGHTS,
    Artifact,
    load_artifact,
    write_artifact,
)
from veltair.profiles.artifact.manifest import Manifest, Port
from veltair.types import CoreSet

if TYPE_CHECKING:
    from veltair.profiles.runtime.executor import Executor
    from veltair.profiles.runtime.pinned_threads import PinnedThreads

ModelTimes: TypeAlias = tuple[tuple[int, ...], ...]  # ns by (batches, cores)

PAUSE_S = 0.005  # between two queries: long enough for threads and cores to fall asleep
TURNS = 5
RUNS, LEAST_RUNS = 12, 3  # in a turn
TURN_S = 0.4  # time for one batch size on one core count, unless the least number of runs takes longer
IN_MODEL = "within the model"


def scale_to_whole_model(artifact: Artifact) -> Artifact:
    """Time the model on this machine, and write the scaled times into the artifact.

    Set `pinned_threads.kernel_environment()` before, since TVM's runtime is loaded. Raises ConfigError where the
    artifact was timed on more cores than there are here, and for one that takes raw features.
    """
    manifest = scale_latencies(artifact.manifest, time_whole_model(artifact))
    with write_artifact(artifact.path) as draft:
        for name in (KERNELS, WEIGHTS):
            os.link(artifact.path / name, draft / name)
        (draft / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return load_artifact(artifact.path)


def time_whole_model(artifact: Artifact) -> ModelTimes:
    """Times of whole queries, each layer in the version that is fastest alone: the least median of several turns."""
    from veltair.machine.topology import usable_machine
    from veltair.profiles.runtime.executor import Executor
    from veltair.profiles.runtime.pinned_threads import PinnedThreads

    manifest = artifact.manifest
    timed = len(manifest.layers[0].versions[0].latency_ns[0][0])
    cores = usable_machine().cores[:timed]
    if len(cores) < timed:
        raise ConfigError(f"{artifact.path}: was timed on {timed} cores, this machine offers {len(cores)}")
    if manifest.packed_buffers:
        raise ConfigError(f"{artifact.path}: takes raw features, whose times depend on them")
    before = os.sched_getaffinity(0)
    try:
        threads = PinnedThreads(cores)  # kernels that are loaded from here on use it
        executor = Executor(artifact)
        turns = [_time_turn(executor, threads, cores) for _ in range(TURNS)]
    finally:
        os.sched_setaffinity(0, before)  # this thread was moved
    return tuple(tuple(map(min, zip(*rows, strict=True))) for rows in zip(*turns, strict=True))


def _time_turn(executor: Executor, threads: PinnedThreads, cores: CoreSet) -> ModelTimes:
    manifest = executor.manifest
    found = []
    for at, batch in enumerate(manifest.batches):
        inputs = [_filled_tensor(port, batch) for port in manifest.input_tensors]
        run = executor.bind(batch, inputs, [_filled_tensor(port, batch) for port in manifest.output_tensors])
        row = []
        for count in range(1, len(cores) + 1):
            threads.move_to(cores[:count])
            row.append(_median_ns(run.block(0, _fastest(manifest, at, count))))
        found.append(tuple(row))
    return tuple(found)


def _filled_tensor(port: Port, batch: int) -> NDArray[Any]:
    """A tensor of ones, or of the lowest id."""
    from veltair.profiles.runtime.executor import aligned_zeros

    array = aligned_zeros(port.at(batch), port.dtype)
    array.fill(1 if port.low is None else port.low)
    return array


def scale_latencies(manifest: Manifest, whole: ModelTimes) -> Manifest:
    """Scale the layers' times so that their sum, each layer in the version that is fastest alone, is `whole`."""
    by_batch = slowdown_factors(manifest, whole)

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


def slowdown_factors(manifest: Manifest, whole: ModelTimes) -> list[list[float]]:
    """How many times as long as the sum of the layers `whole` is, by batch and core count."""
    return [
        [took / layers for took, layers in zip(row, sums, strict=True)]
        for row, sums in zip(whole, sum_layer_times(manifest), strict=True)
    ]


def sum_layer_times(manifest: Manifest) -> ModelTimes:
    """The sums of the layers' times, each layer in the version that is fastest alone."""
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

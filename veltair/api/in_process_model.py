"""`load`: a compiled model as a function of this process, without a daemon."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veltair.api.tensors import Inputs, as_array, named_inputs
from veltair.errors import ConfigError, VeltairError
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import Port
from veltair.profiles.artifact.output_layout import read_outputs
from veltair.scheduler.costs.batch_interpolation import interpolate_batches
from veltair.server.protocol.datatypes import DTYPES, Tensor, datatype_name
from veltair.server.protocol.infer_request import NamedTensor
from veltair.server.protocol.validation import InputValidator, batch_size
from veltair.types import CoreSet, ModelProfile

KEPT_BATCHES = 8  # batch sizes whose arrays stay, the last used


def load(artifact: Artifact | str | Path, *, threads: int | None = None) -> InProcessModel:
    """A compiled model that runs in this process.

    ::

        with veltair.load("artifacts/resnet50", threads=2) as model:
            logits = model(image)["logits"]

    `threads`: cores to run on; all that this process may use by default. Raises ArtifactError, and ConfigError for an
    impossible number of threads.
    """
    found = artifact if isinstance(artifact, Artifact) else load_artifact(Path(artifact))
    cores = len(usable_machine().cores)
    if threads is not None and not 1 <= threads <= cores:
        raise ConfigError(f"threads: this process may use 1 … {cores} cores, got {threads}")
    return InProcessModel(found, threads or cores)


def fastest_versions(profiles: Sequence[ModelProfile], batch: int, cores: int) -> list[int]:
    """Index of each layer's fastest version alone. Profiles ascend by batch; the last one covers `batch`."""
    profile = next(each for each in interpolate_batches(profiles) if each.batch >= batch)
    alone_ns = [[version.latency.latency_ns[0][cores - 1] for version in versions] for versions in profile.versions]
    return [times.index(min(times)) for times in alone_ns]


@dataclass(frozen=True, slots=True)
class _BoundBatch:
    """What queries of one batch size run on, one after the other."""

    inputs: list[NDArray[Any]]
    outputs: list[NDArray[Any]]
    block: Callable[[], None]


class InProcessModel:
    """Call it with arrays; `load` makes it. One query of the process runs at a time; other threads wait.

    ::

        with veltair.load("artifacts/dlrm") as model:
            model({"dense": dense, "ids": ids})["score"]
    """

    def __init__(self, artifact: Artifact, threads: int) -> None:
        from veltair.profiles.runtime.executor import open_buckets  # TVM is loaded here, not with this module

        self.artifact = artifact
        self._cores = usable_machine().cores[:threads]
        with _pinned_to(self._cores):  # kernels that are loaded after this use these threads
            self._executors = list(open_buckets(artifact))
        self._buckets = artifact.buckets()
        self._profiles = [bucket.profiles() for bucket in self._buckets]
        self._layouts = [InputLayout.of(bucket.manifest) for bucket in self._buckets]
        self._bound: dict[tuple[int, int], _BoundBatch] = {}  # by bucket and batch, the last used at the end
        self._validator = InputValidator.of(artifact.manifest.model, artifact.manifest)

    def __call__(self, inputs: Inputs) -> dict[str, NDArray[Any]]:
        """Run the model. `inputs`: arrays by name, or the array alone where there is one input.

        Raises RequestError for inputs that are not the model's.
        """
        manifest = self.artifact.manifest
        ports = {port.name: port for port in manifest.client_inputs}
        named = named_inputs(inputs, list(ports))
        tensors = [_named_tensor(name, ports.get(name), values) for name, values in named.items()]
        values = self._validator.validate(tensors)
        batch = batch_size(manifest.inputs, values)
        if (dimension := manifest.dimension) is None:
            return self._run(0, values, batch)
        extent, bucket, padded = dimension.fit(manifest.model, values)
        return dimension.cut(self._run(bucket, padded, batch), extent)

    def _run(self, bucket: int, values: Mapping[str, Tensor], batch: int) -> dict[str, NDArray[Any]]:
        manifest = self._buckets[bucket].manifest
        with _pinned_to(self._cores):
            if not self._executors:
                raise VeltairError(f"{manifest.model}: the model is closed")
            bound = self._bound.pop((bucket, batch), None) or self._bind(bucket, batch)
            self._layouts[bucket].fill(bound.inputs, values, batch)
            self._bound[bucket, batch] = bound
            bound.block()
            return {name: np.array(view) for name, view in read_outputs(manifest, bound.outputs).items()}

    def _bind(self, bucket: int, batch: int) -> _BoundBatch:
        """Arrays of their own for queries of a batch size, and the model's layers bound to them."""
        from veltair.profiles.runtime.executor import aligned_zeros

        if len(self._bound) == KEPT_BATCHES:
            del self._bound[next(iter(self._bound))]
        manifest = self._buckets[bucket].manifest
        inputs = [aligned_zeros(port.at(batch), port.dtype) for port in manifest.input_tensors]
        outputs = [aligned_zeros(port.at(batch), port.dtype) for port in manifest.output_tensors]
        versions = fastest_versions(self._profiles[bucket], batch, len(self._cores))
        return _BoundBatch(inputs, outputs, self._executors[bucket].bind(batch, inputs, outputs).block(0, versions))

    def close(self) -> None:
        """Let go of weights and kernels."""
        with _running:
            self._bound.clear()
            self._executors.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _named_tensor(name: str, port: Port | None, values: ArrayLike) -> NamedTensor:
    """An input as the validator takes it, which names the ones that the model does not have."""
    if port is None:
        return NamedTensor(name, "", (), b"")
    datatype = datatype_name(port.dtype)
    dtype = DTYPES.get(datatype)
    array = np.asarray(values, object) if dtype is None else as_array(values, dtype)  # of thousands of texts, each once
    if array.dtype.hasobject:
        return NamedTensor(name, datatype, array.shape, array.ravel().tolist())
    return NamedTensor(name, datatype_name(array.dtype), array.shape, array.tobytes())


_running = threading.Lock()  # the threads that kernels run on are the process's: one model runs at a time


@contextmanager
def _pinned_to(cores: CoreSet) -> Iterator[None]:
    """Kernels run on these cores, the calling thread on one of them; afterwards it is as free as before."""
    from veltair.profiles.runtime.pinned_threads import PinnedThreads

    with _running:
        before = os.sched_getaffinity(0)
        try:
            PinnedThreads(cores)
            yield
        finally:
            os.sched_setaffinity(0, before)

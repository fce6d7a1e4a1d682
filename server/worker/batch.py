"""Several queries of a tenant as one batch: their rows are gathered for the kernels, and the results given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import Manifest
from veltair.profiles.runtime.executor import empty
from veltair.server.ipc.messages import Part
from veltair.server.ipc.tensor_pool import TensorPool


class Batch:
    """Room for one batch of a tenant in a worker's own memory; every input and output has a row for each sample."""

    def __init__(self, pool: TensorPool, tenant: int, manifest: Manifest) -> None:
        self._pool, self._tenant, self._manifest = pool, tenant, manifest
        region, self._most = pool.regions[tenant], manifest.max_batch
        self._sources = pool.rows(region.inputs, tenant, self._most)
        self._targets = pool.rows(region.outputs, tenant, self._most)
        self._inputs = [empty(field.at(self._most), field.dtype) for field in region.inputs]
        self._outputs = [empty(field.at(self._most), field.dtype) for field in region.outputs]

    def inputs(self, samples: int) -> list[NDArray[Any]]:
        """As `Manifest.input_tensors` lists them."""
        fields = self._pool.regions[self._tenant].inputs
        return [a[: f.at(samples)[0]] for a, f in zip(self._inputs, fields, strict=True)]

    def outputs(self, samples: int) -> list[NDArray[Any]]:
        return [array[:samples] for array in self._outputs]

    def gather(self, parts: Sequence[Part]) -> None:
        """Raises IndexError for a slot that is not there, ValueError for more rows than there is room for."""
        places = self._places(parts)
        inputs = self.inputs(len(places[0]))
        if self._manifest.packed_buffers:  # a packed buffer has no rows: it is packed feature by feature
            InputLayout.of(self._manifest).merge(inputs, [(self._slot(part), part.samples) for part in parts])
            return
        for array, source in zip(inputs, self._sources, strict=True):
            array[...] = source[places]

    def _slot(self, part: Part) -> list[NDArray[Any]]:
        return self._pool.inputs(self._tenant, part.slot, part.samples)

    def scatter(self, parts: Sequence[Part]) -> None:
        places = self._places(parts)
        for array, target in zip(self.outputs(len(places[0])), self._targets, strict=True):
            target[places] = array

    def _places(self, parts: Sequence[Part]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Slot and row within it of each sample."""
        samples = np.array([part.samples for part in parts], np.intp)
        total = int(samples.sum())
        if samples.min() < 1 or total > self._most:
            raise ValueError(f"expected a batch of at most {self._most} samples, got {samples.tolist()}")
        slots = np.repeat(np.array([part.slot for part in parts], np.intp), samples)
        return slots, np.arange(total) - np.repeat(samples.cumsum() - samples, samples)

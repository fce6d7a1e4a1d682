"""`BatchBuffers`: gathers the rows of several queries into one batch for the kernels, and scatters the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import Manifest
from veltair.profiles.runtime.executor import aligned_zeros
from veltair.server.ipc.messages import BatchMember
from veltair.server.ipc.tensor_pool import TensorPool


class BatchBuffers:
    """Buffers for one batch of a tenant in a worker's own memory; every input and output has a row for each sample.

    ::

        buffers.gather(members)  # from the members' slots
        run_kernels(buffers.inputs(samples), buffers.outputs(samples))
        buffers.scatter(members)  # into the members' slots
    """

    def __init__(self, pool: TensorPool, tenant: int, manifest: Manifest) -> None:
        self._pool, self._tenant, self._manifest = pool, tenant, manifest
        region, self._max_samples = pool.regions[tenant], manifest.max_batch
        self._sources = pool.rows(region.inputs, tenant, self._max_samples)
        self._targets = pool.rows(region.outputs, tenant, self._max_samples)
        self._inputs = [aligned_zeros(field.shape_at(self._max_samples), field.dtype) for field in region.inputs]
        self._outputs = [aligned_zeros(field.shape_at(self._max_samples), field.dtype) for field in region.outputs]

    def inputs(self, samples: int) -> list[NDArray[Any]]:
        """In the order of `Manifest.input_tensors`, each cut to this many samples."""
        fields = self._pool.regions[self._tenant].inputs
        return [a[: f.shape_at(samples)[0]] for a, f in zip(self._inputs, fields, strict=True)]

    def outputs(self, samples: int) -> list[NDArray[Any]]:
        return [array[:samples] for array in self._outputs]

    def gather(self, members: Sequence[BatchMember]) -> None:
        """Copy the inputs of all members from their slots.

        Raises IndexError for a slot that does not exist, ValueError for more rows than the buffers hold.
        """
        rows = self._slots_and_rows(members)
        inputs = self.inputs(len(rows[0]))
        if self._manifest.packed_buffers:  # a packed buffer has no rows: it is packed feature by feature
            InputLayout.of(self._manifest).merge(inputs, [(self._slot(member), member.samples) for member in members])
            return
        for array, source in zip(inputs, self._sources, strict=True):
            array[...] = source[rows]

    def scatter(self, members: Sequence[BatchMember]) -> None:
        """Copy the outputs of all members to their slots."""
        rows = self._slots_and_rows(members)
        for array, target in zip(self.outputs(len(rows[0])), self._targets, strict=True):
            target[rows] = array

    def _slot(self, member: BatchMember) -> list[NDArray[Any]]:
        return self._pool.inputs(self._tenant, member.slot, member.samples)

    def _slots_and_rows(self, members: Sequence[BatchMember]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Of each sample of the batch: its slot, and its row within the slot."""
        samples = np.array([member.samples for member in members], np.intp)
        total = int(samples.sum())
        if samples.min() < 1 or total > self._max_samples:
            raise ValueError(f"expected a batch of at most {self._max_samples} samples, got {samples.tolist()}")
        slots = np.repeat(np.array([member.slot for member in members], np.intp), samples)
        return slots, np.arange(total) - np.repeat(samples.cumsum() - samples, samples)

"""`BatchBuffers`: gathers the rows of several queries into one batch for the kernels, and scatters the results."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.machine.native_library import array_address, native_library
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import Manifest
from veltair.profiles.runtime.executor import aligned_zeros
from veltair.server.ipc.block_orders import unpack_members
from veltair.server.ipc.tensor_pool import TensorField, TensorPool

FIELD = np.dtype([("slots", np.uint64), ("batch", np.uint64), ("row_bytes", np.int64)])
_MEMBER_BYTES, _NO_SLOT, _NO_BATCH = 8, -1, -2


class BatchBuffers:
    """Buffers for one batch of a tenant in a worker's own memory; every input and output has rows for each sample.

    `members` are those of an order, packed::

        buffers.gather(members)  # from the members' slots
        run_kernels(buffers.inputs(samples), buffers.outputs(samples))
        buffers.scatter(members)  # into the members' slots
    """

    def __init__(self, pool: TensorPool, tenant: int, manifest: Manifest) -> None:
        self._pool, self._tenant, self._manifest = pool, tenant, manifest
        region, self._max_samples = pool.regions[tenant], manifest.max_batch
        self._inputs = [aligned_zeros(field.shape_at(self._max_samples), field.dtype) for field in region.inputs]
        self._outputs = [aligned_zeros(field.shape_at(self._max_samples), field.dtype) for field in region.outputs]
        self._sources = _field_table(region.inputs, pool.inputs(tenant, 0, 1), self._inputs)
        self._targets = _field_table(region.outputs, pool.outputs(tenant, 0, 1), self._outputs)
        self._addresses = array_address(self._sources), array_address(self._targets)
        self._slot_bytes = region.slot_bytes
        self._functions = _functions()

    def inputs(self, samples: int) -> list[NDArray[Any]]:
        """Inputs in the order of `Manifest.input_tensors`, each cut to this many samples."""
        return _cut(self._inputs, self._pool.regions[self._tenant].inputs, samples)

    def outputs(self, samples: int) -> list[NDArray[Any]]:
        return _cut(self._outputs, self._pool.regions[self._tenant].outputs, samples)

    def gather(self, members: bytes) -> None:
        """Copy the inputs of all members from their slots.

        Raises IndexError for a slot that does not exist, ValueError for more rows than the buffers hold.
        """
        samples = self._count_samples(members)
        if self._manifest.packed_buffers:  # a packed buffer has no rows: it is packed feature by feature
            parts = [(self._pool.inputs(self._tenant, slot, count), count) for slot, count in unpack_members(members)]
            InputLayout.of(self._manifest).merge(self.inputs(samples), parts)
            return
        count = len(members) // _MEMBER_BYTES
        self._functions.gather(self._addresses[0], len(self._sources), self._slot_bytes, members, count)

    def scatter(self, members: bytes) -> None:
        """Copy the outputs of all members to their slots. Raises as `gather` does."""
        self._count_samples(members)
        count = len(members) // _MEMBER_BYTES
        self._functions.scatter(self._addresses[1], len(self._targets), self._slot_bytes, members, count)

    def _count_samples(self, members: bytes) -> int:
        slots, count = self._pool.slots, len(members) // _MEMBER_BYTES
        samples: int = self._functions.count_samples(members, count, slots, self._max_samples)
        if samples == _NO_SLOT:
            raise IndexError(f"expected slots below {slots}, got {unpack_members(members)}")
        if samples == _NO_BATCH:
            raise ValueError(f"expected a batch of at most {self._max_samples} samples, got {unpack_members(members)}")
        return samples


def _cut(arrays: Sequence[NDArray[Any]], fields: Sequence[TensorField], samples: int) -> list[NDArray[Any]]:
    return [array[: field.shape_at(samples)[0]] for array, field in zip(arrays, fields, strict=True)]


@cache
def _functions() -> Any:
    library = native_library("veltair.server.worker._batch_rows")
    fields, members, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64
    library.count_samples.argtypes, library.count_samples.restype = (members, number, number, number), number
    for copy in (library.gather, library.scatter):
        copy.argtypes, copy.restype = (fields, number, number, members, number), None
    return library


def _field_table(
    fields: Sequence[TensorField], slots: Sequence[NDArray[Any]], batch: Sequence[NDArray[Any]]
) -> NDArray[Any]:
    """`slots` are views of the first one."""
    table = np.zeros(len(fields), FIELD)
    table["slots"] = [array_address(array) for array in slots]
    table["batch"] = [array_address(array) for array in batch]
    table["row_bytes"] = [field.bytes_at(1) for field in fields]
    return table

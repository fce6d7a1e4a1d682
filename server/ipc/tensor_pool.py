"""`TensorPool`: the tensors of queries in memory that front and workers share.

Each tenant has a region of slots of its own, so no byte of one tenant ever lies in a slot of another. A slot has
space for everything that the inputs are packed into (`Manifest.input_tensors`), then for every output, at the tenant's
largest batch. The memory is sparse: a slot costs nothing until it is first used, and the slot freed last is taken
next, so few are used. Regions come and go with their tenants; the pool is large enough that there is always a place.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import weakref
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.errors import VeltairError
from veltair.machine.native_library import array_address
from veltair.profiles.artifact.manifest import ALIGNMENT, ITEM_BYTES, SLACK_BYTES, Manifest, shape_at
from veltair.server.ipc.block_orders import bucket_number, tenant_of

POOL_BYTES = 1 << 42  # sparse: what is never written costs nothing
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL  # nobody can cut it under a reader


@dataclass(frozen=True, slots=True)
class TensorField:
    """One tensor of a slot.

    >>> field = TensorField("x", "float32", (-1, 4), offset=0)
    >>> field.shape_at(batch=3), field.bytes_at(batch=3)
    ((3, 4), 48)
    """

    name: str
    dtype: str
    shape: tuple[int, ...]  # a dimension -k is k times the batch
    offset: int  # bytes from the slot's begin

    def shape_at(self, batch: int) -> tuple[int, ...]:
        return shape_at(self.shape, batch)

    def bytes_at(self, batch: int) -> int:
        return math.prod(self.shape_at(batch)) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class TensorRegion:
    """The slots of one tenant: where they begin, and the tensors in each.

    >>> x = TensorField("x", "float32", (-1, 4), offset=0)
    >>> TensorRegion(offset=0, slot_bytes=4096, inputs=(x,), outputs=()).inputs[0].name
    'x'
    """

    offset: int  # bytes from the pool's begin
    slot_bytes: int
    inputs: tuple[TensorField, ...]
    outputs: tuple[TensorField, ...]


def lay_out_region(manifest: Manifest, offset: int) -> TensorRegion:
    """The region of a tenant that begins there; every process that computes it gets the same."""
    fields = []
    size = 0
    for port in (*manifest.input_tensors, *manifest.output_tensors):
        fields.append(TensorField(port.name, port.dtype, port.shape, size))
        size += _round_up(fields[-1].bytes_at(manifest.max_batch) + SLACK_BYTES, ALIGNMENT)
    split = len(manifest.input_tensors)
    return TensorRegion(
        offset, max(_round_up(size, mmap.PAGESIZE), mmap.PAGESIZE), tuple(fields[:split]), tuple(fields[split:])
    )


def region_bytes(manifest: Manifest, slots: int) -> int:
    """The size of the region of a tenant's slots."""
    return lay_out_region(manifest, 0).slot_bytes * slots


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


class RegionSpace:
    """Where in a pool regions begin: each at the first gap that takes it.

    >>> space = RegionSpace(size=100)
    >>> [space.take(60), space.take(30)]
    [0, 60]
    >>> space.give_back(0)
    >>> space.take(20)
    0
    """

    def __init__(self, size: int = POOL_BYTES) -> None:
        self._size = size
        self._regions: list[tuple[int, int]] = []  # begin and end of each, in order

    def take(self, size: int) -> int:
        """Where a region of this size begins. Raises VeltairError when no gap takes it."""
        begin = 0
        for taken, end in self._regions:
            if begin + size <= taken:
                break
            begin = end
        if begin + size > self._size:
            raise VeltairError(f"the slots of all models take more than {self._size >> 30} GB")
        insort(self._regions, (begin, begin + size))
        return begin

    def give_back(self, begin: int) -> None:
        self._regions = [region for region in self._regions if region[0] != begin]


def create_tensor_pool() -> int:
    """New memory for a pool, all zero, of fixed size. Returns its descriptor."""
    fd = os.memfd_create("veltair-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, POOL_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


class TensorPool:
    """Maps the memory behind a descriptor of `create_tensor_pool`; the descriptor may be closed afterwards.

    Views are 64-byte aligned and contiguous, as kernels want them::

        pool = TensorPool(create_tensor_pool(), slots=64)
        pool.add(0, manifest, offset=0)
        pool.inputs(tenant=0, slot=5, batch=2)[0][:] = x
    """

    def __init__(self, fd: int, slots: int) -> None:
        self.regions: dict[int, TensorRegion] = {}  # by `bucket_number`
        self.slots = slots  # of each tenant
        self._mapped: dict[int, mmap.mmap] = {}  # each region by itself: a stray access meets no other one
        self._bytes: dict[int, NDArray[np.uint8]] = {}
        self._fd = os.dup(fd)
        self._close_descriptor = weakref.finalize(self, os.close, self._fd)

    def add(self, tenant: int, manifest: Manifest, offset: int) -> TensorRegion:
        """Map the tenant's region, which begins there. Each bucket of the model has its own tensors in the slots."""
        region = lay_out_region(manifest, offset)
        for bucket, smaller in enumerate(manifest.buckets, 1):
            within = replace(lay_out_region(smaller, offset), slot_bytes=region.slot_bytes)
            self.regions[bucket_number(tenant, bucket)] = within
        memory = mmap.mmap(self._fd, region.slot_bytes * self.slots, offset=offset)
        self.regions[tenant], self._mapped[tenant] = region, memory
        self._bytes[tenant] = np.frombuffer(memory, np.uint8)
        return region

    def remove(self, tenant: int) -> None:
        """Nobody here uses the tenant's region any more."""
        self.regions = {number: each for number, each in self.regions.items() if tenant_of(number) != tenant}
        del self._mapped[tenant], self._bytes[tenant]

    def close(self) -> None:
        """Nobody asks for views any more; the memory goes with the last of them."""
        self.regions, self._mapped, self._bytes = {}, {}, {}
        self._close_descriptor()

    def free_memory(self, tenant: int) -> None:
        """Give the memory of the tenant's region back to the system; it is all zero then."""
        self._mapped[tenant].madvise(mmap.MADV_REMOVE)

    def used_bytes(self, tenant: int) -> int:
        """The memory that the tenant's slots take now: those that were used since it came."""
        begin = self.regions[tenant].offset
        end, used = begin + len(self._mapped[tenant]), 0
        while begin < end:
            try:
                begin = os.lseek(self._fd, begin, os.SEEK_DATA)
            except OSError:  # there is nothing behind it (ENXIO)
                break
            stop = min(os.lseek(self._fd, begin, os.SEEK_HOLE), end)
            used += max(stop - begin, 0)
            begin = stop if stop > begin else end
        return used

    def address(self, tenant: int) -> int:
        """The address of the first byte of its region, for native code; valid until it is removed."""
        return array_address(self._bytes[tenant])

    def inputs(self, tenant: int, slot: int, batch: int) -> list[NDArray[Any]]:
        """Views of a slot's inputs, in the order of the region's fields. `tenant`: a `bucket_number`."""
        return self._views(self.regions[tenant].inputs, tenant, slot, batch)

    def outputs(self, tenant: int, slot: int, batch: int) -> list[NDArray[Any]]:
        """Views of a slot's outputs, in the order of the region's fields."""
        return self._views(self.regions[tenant].outputs, tenant, slot, batch)

    def _views(self, fields: Sequence[TensorField], tenant: int, slot: int, batch: int) -> list[NDArray[Any]]:
        region = self.regions[tenant]
        views = []
        for field in fields:
            at = slot * region.slot_bytes + field.offset
            tensor = self._bytes[tenant_of(tenant)][at : at + field.bytes_at(batch)]
            views.append(tensor.view(field.dtype).reshape(field.shape_at(batch)))
        return views

"""`TensorPool`: the tensors of queries in memory that front and workers share.

Each tenant has a region of slots of its own, so no byte of one tenant ever lies in a slot of another. A slot has
space for everything that the inputs are packed into (`Manifest.input_tensors`), then for every output, at the tenant's
largest batch. The memory is sparse: a slot costs nothing until it is first used, and the slot freed last is taken
next, so few are used.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.profiles.artifact.manifest import ALIGNMENT, ITEM_BYTES, SLACK_BYTES, Manifest, shape_at
from veltair.server.ipc.native_library import array_address

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


def lay_out_regions(manifests: Sequence[Manifest], slots: int) -> tuple[TensorRegion, ...]:
    """One region for each tenant; every process that computes them gets the same."""
    regions = []
    begin = 0
    for manifest in manifests:
        fields = []
        offset = 0
        for port in (*manifest.input_tensors, *manifest.outputs):
            fields.append(TensorField(port.name, port.dtype, port.shape, offset))
            offset += _round_up(fields[-1].bytes_at(manifest.max_batch) + SLACK_BYTES, ALIGNMENT)
        slot_bytes = _round_up(offset, mmap.PAGESIZE)
        split = len(manifest.input_tensors)
        regions.append(TensorRegion(begin, slot_bytes, tuple(fields[:split]), tuple(fields[split:])))
        begin += slot_bytes * slots
    return tuple(regions)


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def _pool_bytes(regions: Sequence[TensorRegion], slots: int) -> int:
    last = regions[-1]
    return max(last.offset + last.slot_bytes * slots, mmap.PAGESIZE)


def create_tensor_pool(manifests: Sequence[Manifest], slots: int) -> int:
    """New memory for a pool, all zero, of fixed size. Returns its descriptor."""
    fd = os.memfd_create("veltair-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, _pool_bytes(lay_out_regions(manifests, slots), slots))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


class TensorPool:
    """Maps the memory behind a descriptor of `create_tensor_pool`; the descriptor may be closed afterwards.

    Views are 64-byte aligned and contiguous, as kernels want them::

        pool = TensorPool(create_tensor_pool(manifests, slots=64), manifests, slots=64)
        pool.inputs(tenant=0, slot=5, batch=2)[0][:] = x
    """

    def __init__(self, fd: int, manifests: Sequence[Manifest], slots: int) -> None:
        self.regions = lay_out_regions(manifests, slots)
        self.slots = slots  # of each tenant
        self._bytes = np.frombuffer(mmap.mmap(fd, _pool_bytes(self.regions, slots)), np.uint8)

    @property
    def address(self) -> int:
        """Of its first byte, for native code; valid as long as this object lives."""
        return array_address(self._bytes)

    def inputs(self, tenant: int, slot: int, batch: int) -> list[NDArray[Any]]:
        """Views of a slot's inputs, in the order of the region's fields."""
        return self._views(self.regions[tenant].inputs, tenant, slot, batch)

    def outputs(self, tenant: int, slot: int, batch: int) -> list[NDArray[Any]]:
        """Views of a slot's outputs, in the order of the region's fields."""
        return self._views(self.regions[tenant].outputs, tenant, slot, batch)

    def _views(self, fields: Sequence[TensorField], tenant: int, slot: int, batch: int) -> list[NDArray[Any]]:
        region = self.regions[tenant]
        begin = region.offset + slot * region.slot_bytes
        views = []
        for field in fields:
            at = begin + field.offset
            tensor = self._bytes[at : at + field.bytes_at(batch)]
            views.append(tensor.view(field.dtype).reshape(field.shape_at(batch)))
        return views

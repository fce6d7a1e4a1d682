"""Tensors of queries in memory that front and workers share.

Each tenant has a region of slots of its own, so no byte of one tenant ever stands in a slot of another. A slot has
room for everything that inputs lie in (`Manifest.input_tensors`), then every output, at the tenant's largest batch. The
memory is sparse: a slot costs nothing until it is first used, and the slot given back last is taken next, so few are.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.errors import OverloadedError
from veltair.profiles.artifact.manifest import ALIGNMENT, ITEM_BYTES, SLACK_BYTES, Manifest, shape_at
from veltair.profiles.artifact.strings import Strings

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL  # nobody can cut it under a reader


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    dtype: str
    shape: tuple[int, ...]  # a dimension -k is k times the batch
    offset: int  # bytes from the slot's begin

    def at(self, batch: int) -> tuple[int, ...]:
        return shape_at(self.shape, batch)

    def bytes_at(self, batch: int) -> int:
        return math.prod(self.at(batch)) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Region:
    """One tenant's slots."""

    offset: int  # bytes from the pool's begin
    slot_bytes: int
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]


def regions(manifests: Sequence[Manifest], slots: int) -> tuple[Region, ...]:
    """Where everything stands; the same in every process that computes it."""
    result = []
    begin = 0
    for manifest in manifests:
        fields = []
        offset = 0
        for port in (*manifest.input_tensors, *manifest.outputs):
            fields.append(Field(port.name, port.dtype, port.shape, offset))
            offset += _round_up(fields[-1].bytes_at(manifest.max_batch) + SLACK_BYTES, ALIGNMENT)
        slot_bytes = _round_up(offset, mmap.PAGESIZE)
        split = len(manifest.input_tensors)
        result.append(Region(begin, slot_bytes, tuple(fields[:split]), tuple(fields[split:])))
        begin += slot_bytes * slots
    return tuple(result)


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


class TensorPool:
    """The memory. Views are 64-byte aligned and contiguous, as kernels want them."""

    def __init__(self, fd: int, manifests: Sequence[Manifest], slots: int) -> None:
        self.regions = regions(manifests, slots)
        self._slots = slots
        self._bytes = np.frombuffer(mmap.mmap(fd, pool_bytes(self.regions, slots)), np.uint8)

    def inputs(self, tenant: int, slot: int, batch: int) -> list[NDArray[Any]]:
        return self._views(self.regions[tenant].inputs, tenant, slot, batch)

    def outputs(self, tenant: int, slot: int, batch: int) -> list[NDArray[Any]]:
        return self._views(self.regions[tenant].outputs, tenant, slot, batch)

    def rows(self, fields: Sequence[Field], tenant: int, batch: int) -> list[NDArray[Any]]:
        """For each field the rows of all the tenant's slots, `batch` of them a slot: (slots, batch, …)."""
        region = self.regions[tenant]
        views = []
        for field in fields:
            item, shape = ITEM_BYTES[field.dtype], field.at(batch)
            strides = [math.prod(shape[i:]) * item for i in range(1, len(shape) + 1)]
            views.append(
                np.ndarray(
                    (self._slots, *shape), field.dtype, self._bytes,
                    region.offset + field.offset, (region.slot_bytes, *strides),
                )
            )  # fmt: skip
        return views

    def _views(self, fields: Sequence[Field], tenant: int, slot: int, batch: int) -> list[NDArray[Any]]:
        region = self.regions[tenant]
        begin = region.offset + slot * region.slot_bytes
        views = []
        for field in fields:
            at = begin + field.offset
            views.append(self._bytes[at : at + field.bytes_at(batch)].view(field.dtype).reshape(field.at(batch)))
        return views


def batch_of(manifest: Manifest, inputs: Mapping[str, NDArray[Any] | Strings]) -> int:
    """Rows of the first of a query's inputs that has any; 1 where every shape is fixed."""
    for port in manifest.inputs:
        value = inputs.get(port.name)
        if port.shape[:1] == (-1,) and value is not None:
            return len(value) if isinstance(value, Strings) else value.shape[0] if value.shape else 1
    return 1


def pool_bytes(layout: Sequence[Region], slots: int) -> int:
    last = layout[-1]
    return max(last.offset + last.slot_bytes * slots, mmap.PAGESIZE)


def create(manifests: Sequence[Manifest], slots: int) -> int:
    """New memory for a pool, all zero, of fixed size. Returns its descriptor."""
    fd = os.memfd_create("veltair-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, pool_bytes(regions(manifests, slots), slots))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


class FreeSlots:
    """Which slots are free: at most `slots` taken over all tenants together."""

    def __init__(self, tenants: int, slots: int) -> None:
        self._free = [list(range(slots - 1, -1, -1)) for _ in range(tenants)]
        self._slots = slots
        self.taken = 0

    def take(self, tenant: int) -> int:
        """Raises OverloadedError when none is left."""
        if self.taken == self._slots:
            raise OverloadedError(f"{self._slots} queries are held already, the most this server takes; try later")
        self.taken += 1
        return self._free[tenant].pop()

    def give_back(self, tenant: int, slot: int) -> None:
        self.taken -= 1
        self._free[tenant].append(slot)

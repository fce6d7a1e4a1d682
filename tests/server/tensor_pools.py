"""Tensor pools of tests."""

from __future__ import annotations

import os
from collections.abc import Sequence

from veltair.profiles.artifact.manifest import Manifest
from veltair.server.ipc.tensor_pool import RegionSpace, TensorPool, create_tensor_pool, region_bytes


def fill_pool(pool: TensorPool, manifests: Sequence[Manifest]) -> TensorPool:
    """The pool with a region for each, numbered from 0 on."""
    space = RegionSpace()
    for tenant, manifest in enumerate(manifests):
        pool.add(tenant, manifest, space.take(region_bytes(manifest, pool.slots)))
    return pool


def new_pool(manifests: Sequence[Manifest], slots: int) -> TensorPool:
    """A pool of its own with a region for each, numbered from 0 on."""
    fd = create_tensor_pool()
    pool = fill_pool(TensorPool(fd, slots), manifests)
    os.close(fd)
    return pool

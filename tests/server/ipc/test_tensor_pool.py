"""Slots of the tensor pool: aligned, apart, sealed."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tensor_pools import fill_pool, new_pool

from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.artifact.manifest import SLACK_BYTES
from veltair.server.ipc.tensor_pool import TensorPool, create_tensor_pool

pytestmark = pytest.mark.slow


def test_slots_are_aligned_and_never_overlap(artifacts: Path) -> None:
    manifests = [load_artifact(artifacts / name).manifest for name in ("mlp", "spin")]
    pool = new_pool(manifests, 3)
    spans = []
    for tenant, manifest in enumerate(manifests):
        for slot in range(3):
            for view in (
                *pool.inputs(tenant, slot, manifest.max_batch),
                *pool.outputs(tenant, slot, manifest.max_batch),
            ):
                begin = view.ctypes.data
                assert begin % 64 == 0
                assert view.flags.c_contiguous
                assert not view.any()
                spans.append((begin, begin + view.nbytes + SLACK_BYTES))
    spans.sort()
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    with pytest.raises(OSError, match="not permitted"):
        os.truncate(f"/proc/self/fd/{fd_of(pool)}", 0)


def fd_of(pool: TensorPool) -> int:
    """A descriptor of the pool's memory: the mapping keeps one open."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if "veltair-tensors" in str(entry.readlink()):
                return int(entry.name)
        except FileNotFoundError:
            continue
    raise AssertionError(f"no descriptor of {pool}")


def test_a_sealed_pool_keeps_its_bytes_when_written_through_another_mapping(artifacts: Path) -> None:
    manifest = load_artifact(artifacts / "mlp").manifest
    fd = create_tensor_pool()
    ours, theirs = fill_pool(TensorPool(fd, 2), [manifest]), fill_pool(TensorPool(fd, 2), [manifest])
    os.close(fd)
    ours.inputs(0, 1, 2)[0][:] = np.arange(32, dtype=np.float32).reshape(2, 16)
    assert theirs.inputs(0, 1, 2)[0].ravel().tolist() == list(range(32))
    assert not theirs.inputs(0, 0, 2)[0].any()

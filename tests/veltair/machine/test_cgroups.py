"""Limits of cgroups of both versions, on machines that we do not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_tree import CGROUP_V1, CGROUP_V2, v1_machine, v2_machine

from veltair.machine.cgroups import cgroup_folders, memory_limit_bytes, parse_quota, quota_cpus

QUOTAS = {
    "max 100000\n": None,
    "200000 100000\n": 2.0,
    "150000 100000": 1.5,
    "-1 100000": None,
    "": None,
    " ": None,
    "50000": 0.5,
}


@pytest.mark.parametrize(("text", "cpus"), QUOTAS.items())
def test_quotas(text: str, cpus: float | None) -> None:
    assert parse_quota(text) == cpus


def test_cgroup_folders() -> None:
    v1, v2 = "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"
    in_docker = cgroup_folders(CGROUP_V1, "4:cpu,cpuacct:/docker/ab\n3:memory:/x\n", "cpu")
    assert in_docker == [f"{v1}/docker/ab", f"{v1}/docker", v1]
    in_slice = cgroup_folders(CGROUP_V2, "0::/user.slice/a.scope\n", "cpu")
    assert in_slice == [f"{v2}/user.slice/a.scope", f"{v2}/user.slice", v2]
    assert cgroup_folders(CGROUP_V1, "", "memory") == []
    inside = CGROUP_V1.replace("0:29 /", "0:29 /docker/ab")  # the container's own folder is all that is mounted
    assert cgroup_folders(inside, "4:cpu,cpuacct:/docker/ab\n", "cpu") == [v1]
    assert cgroup_folders(CGROUP_V2, "0::/../../outside\n", "cpu") == [v2]


def test_the_tightest_group_of_version_2_counts(tmp_path: Path) -> None:
    root = v2_machine(tmp_path)
    assert quota_cpus(root) == 1.0 and memory_limit_bytes(root) == 4 << 30  # the parent's, tighter than its own


def test_version_1(tmp_path: Path) -> None:
    assert quota_cpus(v1_machine(tmp_path, quota_us=-1)) is None
    assert quota_cpus(v1_machine(tmp_path, quota_us=150_000)) == 1.5


def test_a_machine_without_cgroups(tmp_path: Path) -> None:
    assert quota_cpus(tmp_path) is None and memory_limit_bytes(tmp_path) is None

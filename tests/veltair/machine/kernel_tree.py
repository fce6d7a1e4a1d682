"""Kernel files of machines that we do not have, written below a directory."""

from __future__ import annotations

from pathlib import Path

# `/proc/self/mountinfo` of a system with cgroups version 1, and of one with version 2.
CGROUP_V1 = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" + (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
)
CGROUP_V2 = "25 20 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def two_cores() -> dict[str, str]:
    """Two cores, each with an L1 and an L2, that share an L3 of 32 MiB."""
    files = {}
    for core in (0, 1):
        base = f"sys/devices/system/cpu/cpu{core}"
        caches = ((1, "Data", "48K", core), (1, "Instruction", "32K", core), (2, "Unified", "2048K", core))
        for index, (level, kind, size, shared) in enumerate((*caches, (3, "Unified", "32M", "0-1"))):
            cache = f"{base}/cache/index{index}"
            files |= {f"{cache}/level": f"{level}\n", f"{cache}/type": f"{kind}\n"}
            files |= {f"{cache}/size": f"{size}\n", f"{cache}/shared_cpu_list": f"{shared}\n"}
        files[f"{base}/topology/thread_siblings_list"] = f"{core}\n"
    return files


def v2_machine(root: Path) -> Path:
    """Two cores, 8 GiB; cgroups of version 2 in which the parent's limits are tighter than the process's own."""
    group = "sys/fs/cgroup/pod"
    limits = {
        "proc/self/mountinfo": CGROUP_V2,
        "proc/self/cgroup": "0::/pod/app\n",
        f"{group}/cpu.max": "100000 100000\n",
        f"{group}/app/cpu.max": "max 100000\n",
        f"{group}/memory.max": "4294967296\n",
        f"{group}/app/memory.max": "max\n",
    }
    return write_tree(root, two_cores() | limits)


def v1_machine(root: Path, quota_us: int) -> Path:
    """Two cores; cgroups of version 1, with a period of 100 ms."""
    group = "sys/fs/cgroup/cpu,cpuacct"
    limits = {
        "proc/self/mountinfo": CGROUP_V1,
        "proc/self/cgroup": "4:cpu,cpuacct:/\n",
        f"{group}/cpu.cfs_quota_us": f"{quota_us}\n",
        f"{group}/cpu.cfs_period_us": "100000\n",
    }
    return write_tree(root, two_cores() | limits)

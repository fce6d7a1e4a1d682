"""Limits that cgroups (v1 and v2) put on this process: processor time and memory."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from veltair.machine.kernel_files import ROOT, parse_size, read_text


def quota_cpus(root: Path = ROOT) -> float | None:
    """Processors that the tightest cgroup grants, such as 1.5; None when no cgroup limits them."""
    granted: list[float] = []
    for folder in _limiting_folders(root, "cpu"):
        quota, period = (read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        for text in (read_text(folder / "cpu.max"), f"{quota} {period}"):
            cpus = parse_quota(text)
            granted += [] if cpus is None else [cpus]
    return min(granted, default=None)


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """Memory that the tightest cgroup grants; None when no cgroup limits it."""
    folders = _limiting_folders(root, "memory")
    texts = [read_text(folder / name) for folder in folders for name in ("memory.max", "memory.limit_in_bytes")]
    return min((size for size in map(parse_size, texts) if size > 0), default=None)


def parse_quota(text: str) -> float | None:
    """Processors granted by a quota and a period in us; None is no limit.

    text: `cpu.max` of cgroup v2, or v1's `cpu.cfs_quota_us` and `cpu.cfs_period_us` joined by a space.

    >>> parse_quota("150000 100000"), parse_quota("max 100000"), parse_quota("-1 100000")
    (1.5, None, None)
    """
    quota, _, period = text.strip().partition(" ")
    if quota in ("", "max") or int(quota) <= 0:
        return None
    return int(quota) / int(period or 100_000)


def cgroup_folders(mountinfo: str, membership: str, controller: str) -> list[str]:
    """Folders whose limits bind this process for one controller ("cpu", "memory"), innermost first.

    mountinfo, membership: `/proc/self/mountinfo` and `/proc/self/cgroup`, of cgroup v1 or v2. A container may
    see a path that lies above its own mount; its limits are then in the mount itself.
    """
    folders: list[str] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 3 or tail[0] not in ("cgroup", "cgroup2"):
            continue
        if tail[0] == "cgroup" and controller not in tail[2].split(","):
            continue
        mount_root, mount = PurePosixPath(fields[3]), PurePosixPath(fields[4])
        own = mount
        for entry in membership.splitlines():
            hierarchy, names, path = [*entry.split(":", 2), "", ""][:3]
            listed = hierarchy == "0" if tail[0] == "cgroup2" else controller in names.split(",")
            if listed and ".." not in path and PurePosixPath(path).is_relative_to(mount_root):
                own = mount / PurePosixPath(path).relative_to(mount_root)
        while own != mount:
            folders.append(str(own))
            own = own.parent
        folders.append(str(mount))
    return folders


def _limiting_folders(root: Path, controller: str) -> list[Path]:
    proc = root / "proc/self"
    folders = cgroup_folders(read_text(proc / "mountinfo"), read_text(proc / "cgroup"), controller)
    return [root / folder.lstrip("/") for folder in folders]

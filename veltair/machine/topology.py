"""The processor cores that this process may use, the L3 caches that they share, and the sizes of the caches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from veltair.machine.cgroups import quota_cpus
from veltair.machine.kernel_files import ROOT, parse_size, read_text
from veltair.types import CoreSet, Machine


def usable_machine() -> Machine:
    """The cores that this process may use now: affinity mask and cgroup quota, grouped by L3."""
    return Machine(usable_domains(os.sched_getaffinity(0)))


def usable_domains(affinity: Iterable[int], root: Path = ROOT) -> tuple[CoreSet, ...]:
    """The cores of an affinity mask that the quota pays for, grouped by L3."""
    siblings = _read_per_core(root, "topology/thread_siblings_list")
    return pick_cores(group_by_l3(affinity, l3_lists(root)), quota_cpus(root), siblings)


def cache_bytes(root: Path = ROOT) -> dict[str, int]:
    """Sizes of the first core's data caches, `{"L1": …, "L2": …, "L3": …}`, of the levels that the kernel shows."""
    sizes: dict[str, int] = {}
    for folder in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if read_text(folder / "type").strip() != "Instruction" and (size := parse_size(read_text(folder / "size"))):
            sizes[f"L{read_text(folder / 'level').strip()}"] = size
    return sizes


def l3_lists(root: Path = ROOT) -> dict[int, str]:
    """`shared_cpu_list` of each core's level-3 cache; empty text where the kernel shows none."""
    lists: dict[int, str] = {}
    for core in _read_per_core(root, "online"):
        caches = (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*")
        shared = (read_text(c / "shared_cpu_list") for c in caches if read_text(c / "level").strip() == "3")
        lists[core] = next(shared, "")
    return lists


def parse_cpu_list(text: str) -> CoreSet:
    """The cores in the kernel's list format.

    >>> parse_cpu_list("0-3,64-65")
    (0, 1, 2, 3, 64, 65)
    """
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cores))


def group_by_l3(usable: Iterable[int], l3_lists: Mapping[int, str]) -> tuple[CoreSet, ...]:
    """Usable cores by the L3 cache that they share; those whose cache is not known share one domain.

    >>> group_by_l3([0, 1, 2, 3], {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})
    ((0, 1), (2, 3))
    """
    groups: dict[CoreSet, list[int]] = {}
    for core in sorted(usable):
        groups.setdefault(parse_cpu_list(l3_lists.get(core, "")), []).append(core)
    return tuple(tuple(group) for group in groups.values())


def pick_cores(domains: tuple[CoreSet, ...], quota: float | None, siblings: Mapping[int, str]) -> tuple[CoreSet, ...]:
    """Pick as many cores as the quota pays for (floor, at least 1): first one thread of each physical core, domain
    by domain, then second threads.

    >>> pick_cores(((0, 1), (2, 3)), 3.5, {})
    ((0, 1), (2,))
    """
    count = sum(map(len, domains))
    if quota is None or quota >= count:
        return domains
    usable = {core for domain in domains for core in domain}

    def thread_index(core: int) -> int:
        threads = [c for c in parse_cpu_list(siblings.get(core, "")) if c in usable]
        return threads.index(core) if core in threads else 0

    order = sorted((thread_index(core), i, core) for i, domain in enumerate(domains) for core in domain)
    kept = {core for _, _, core in order[: max(1, int(quota))]}
    return tuple(tuple(c for c in domain if c in kept) for domain in domains if kept.intersection(domain))


def _read_per_core(root: Path, file: str) -> dict[int, str]:
    folders = (root / "sys/devices/system/cpu").glob("cpu[0-9]*")
    return {int(folder.name[3:]): read_text(folder / file) for folder in folders}
